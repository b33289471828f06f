"""
Names that could be markup, a link, a command, a header, a template or a field in some place.

Files and notebooks can have nearly all of them. Every text that leaves the machine, or that a
program shows which is no terminal, is tested with each.
"""

from __future__ import annotations

from support.statuses import HOSTILE_NAMES

NAMES = (
    *HOSTILE_NAMES,  # newlines, ANSI, bell, changes of direction, surrogates, an option, nothing
    # HTML
    "<script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    "</pre><iframe src=//evil.example></iframe>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "<!--",
    "-->",
    "<![CDATA[",
    "&lt;script&gt;",
    "&#60;script&#62;",
    '<pre class="trace">',
    "<meta http-equiv=refresh content=0;url=//evil.example>",
    "<a href=//evil.example>here</a>",
    "<scr\0ipt>",
    "\ufeff<script>",
    # Links, Markdown and mentions
    "javascript:alert(1)",
    "[click](http://evil.example)",
    "http://evil.example/x.py",
    "*bold* _it_.py",
    "@everyone",
    "tel:+491234.py",
    # Shells, SQL and paths
    "$(reboot).py",
    "`reboot`.py",
    "a; rm -rf ~",
    "| tee /tmp/x",
    "'; DROP TABLE",
    "../../../etc/passwd",
    # Templates and formats
    "{{.Title}}",
    "{{7*7}}",
    "${HOME}",
    "%s%n%(name)s",
    "%0d%0aX-Evil: 1",
    # Headers, JSON and labels of metrics
    "a\r\nX-Actions: view, Evil, https://evil.example",
    '", "actions": [{"action": "view"}], "x"',
    "/json?since=all",
    'x"} 1\nfaked_metric 1 #',
    'quote".py',
    "back\\slash.py",
    # Characters
    "\0null.py",
    "😀.ipynb",
    "a" * 10_000,
)
