// Elements with text. Names and texts of others are never read as HTML.

import { Widget } from '@lumino/widgets';

export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  name = '',
  text = '',
  children: Node[] = []
): HTMLElementTagNameMap[K] {
  const found = document.createElement(tag);
  found.className = name;
  found.textContent = text;
  found.append(...children);
  return found;
}

/** Change a text only if it differs: a selection and a screen reader keep their place. */
export function setText(node: HTMLElement, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

export function textWidget(text: string): Widget {
  return new Widget({ node: element('pre', 'wd-text', text) });
}
