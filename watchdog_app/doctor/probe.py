# Runs in the user's own interpreter, Python 3.7 and newer, and imports none of watchdog's modules:
# python probe.py versions|tensorflow|torch|jax [use]
"""
What an environment contains, and whether its frameworks find the GPU.

Prints lines that start with MARK, followed by JSON. All other output comes from other code.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

MARK = "@watchdog-doctor "
_WANTED = re.compile(
    r"(tensorflow|tf[-_]nightly|intel[-_]tensorflow|keras|tf[-_]keras|torch|jax|numpy|nvidia|"
    r"triton|cupy|onnxruntime)",
    re.IGNORECASE,
)
_CONDA = re.compile(r"(tensorflow|pytorch|torch|jax|cuda|cudnn|numpy)")


def send(**values: object) -> None:
    """Print one line and flush."""
    sys.stdout.write("\n" + MARK + json.dumps(values, default=str) + "\n")
    sys.stdout.flush()


def versions() -> None:
    """Send the installed packages, read from folder names without any import."""
    found: dict[str, str] = {}
    build: dict[str, Any] | None = None
    torch_cuda: dict[str, Any] | None = None
    packages: dict[str, str] = {}  # folder of each package
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            known = re.match(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info$", name)
            if known and _WANTED.match(known.group(1)):
                key = known.group(1).replace("_", "-").lower()
                found.setdefault(key, known.group(2))  # Python imports the first one on the path
        if build is None and "tensorflow" in names:
            build = _tensorflow_build(os.path.join(folder, "tensorflow/python/platform"))
        if torch_cuda is None and "torch" in names:
            torch_cuda = _torch_cuda(os.path.join(folder, "torch/version.py"))
        for name in ("keras", "tf_keras", "tensorflow", "torch"):
            if name in names:
                packages.setdefault(name, folder or os.getcwd())
    meta = os.path.join(sys.prefix, "conda-meta")
    conda = []
    if os.path.isdir(meta):
        for name in sorted(os.listdir(meta)):
            if _CONDA.search(name) and name.endswith(".json"):
                conda.append(name[:-5])
    shadows = []
    for name in ("tensorflow", "torch", "keras", "numpy", "jax", "random", "types", "logging"):
        if os.path.isfile(name + ".py"):
            shadows.append(name + ".py")
    send(
        result={
            "python": ".".join(map(str, sys.version_info[:3])),
            "prefix": sys.prefix,
            "dists": found,
            "conda": conda,
            "packages": packages,
            "tensorflow_build": build,
            "torch_cuda": torch_cuda,
            "shadows": shadows,
        }
    )


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read(100000)
    except (OSError, ValueError):
        return ""


def _tensorflow_build(folder: str) -> dict[str, Any] | None:
    text = _text(os.path.join(folder, "build_info.py"))
    if not text:
        return None
    found: dict[str, Any] = {}
    for key in ("cuda_version", "cudnn_version"):
        value = re.search(rf"'{key}', *'([\d.]+)'", text)
        found[key] = value.group(1) if value else None
    found["is_cuda_build"] = "'is_cuda_build', True" in text
    found["is_rocm_build"] = "'is_rocm_build', True" in text
    return found


def _torch_cuda(path: str) -> dict[str, Any]:
    value = re.search(r"^cuda\b[^=\n]*= *'([\d.]+)'", _text(path), re.MULTILINE)
    hip = re.search(r"^hip\b[^=\n]*= *'([\d.\w-]+)'", _text(path), re.MULTILINE)
    return {"cuda": value.group(1) if value else None, "hip": hip.group(1) if hip else None}


def _tensorflow_gpus(tf: Any) -> dict[str, Any]:
    build: Any = getattr(tf.sysconfig, "get_build_info", dict)()
    return {
        "cuda": build.get("cuda_version"),
        "built_with_cuda": bool(tf.test.is_built_with_cuda()),
        "gpus": len(tf.config.list_physical_devices("GPU")),
    }


def _tensorflow_computes(tf: Any) -> Iterator[float]:
    with tf.device("/GPU:0"):
        ones = tf.ones([64, 64])
        yield float(tf.linalg.matmul(ones, ones)[0, 0])
        image = tf.nn.conv2d(tf.ones([1, 8, 8, 1]), tf.ones([3, 3, 1, 1]), 1, "SAME")
        yield float(image[0, 4, 4, 0])


def _torch_gpus(torch: Any) -> dict[str, Any]:
    available = torch.cuda.is_available()
    return {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "gpus": torch.cuda.device_count() if available else 0,
        "arch_list": list(torch.cuda.get_arch_list()) if available else [],
    }


def _torch_computes(torch: Any) -> Iterator[float]:
    ones = torch.ones(64, 64, device="cuda")
    yield float((ones @ ones)[0, 0].item())
    image = torch.ones(1, 1, 8, 8, device="cuda")
    kernel = torch.ones(1, 1, 3, 3, device="cuda")
    yield float(torch.nn.functional.conv2d(image, kernel, padding=1)[0, 0, 4, 4].item())


def _jax_gpus(jax: Any) -> dict[str, Any]:
    return {"gpus": sum(one.platform == "gpu" for one in jax.devices())}


def _jax_computes(jax: Any) -> Iterator[float]:
    ones = jax.numpy.ones((64, 64))
    yield float((ones @ ones)[0, 0])


FRAMEWORKS = {
    "tensorflow": (_tensorflow_gpus, _tensorflow_computes),
    "torch": (_torch_gpus, _torch_computes),
    "jax": (_jax_gpus, _jax_computes),
}


def framework(name: str, use: bool) -> None:
    """Send a framework's version, the GPUs that it finds, and whether it computes on one."""
    gpus_of, computes = FRAMEWORKS[name]
    send(step="import " + name)
    library = importlib.import_module(name)
    found: dict[str, Any] = {"version": library.__version__}
    send(result=found, step="list the GPUs")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found.update(gpus_of(library))
    found["warnings"] = [str(one.message)[:1000] for one in caught][:5]
    send(result=found, step="compute on the GPU")
    if found["gpus"] and use:
        try:
            values = computes(library)
            found["product"] = next(values)
            send(result=found, step="compute with cuDNN on the GPU")
            next(values, None)
        except Exception as error:
            found["use_error"] = f"{type(error).__name__}: {error}"
    send(result=found, step=None)


def main(words: list[str]) -> None:
    """Answer one question and exit without the frameworks' exit handlers, which can hang."""
    # The user's modules must take precedence over modules of the same names in this folder.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    what, use = words[0], "use" in words[1:]
    try:
        if what == "versions":
            versions()
        else:
            framework(what, use)
    except Exception as error:
        send(error=f"{type(error).__name__}: {error}")
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
