// The banner at the top of a notebook in danger.

import { Dialog, showDialog } from '@jupyterlab/apputils';
import { NotebookPanel } from '@jupyterlab/notebook';
import { Widget } from '@lumino/widgets';

import { act, explain, ITask, Model } from './api';
import { element, setText, textWidget } from './dom';

const TOGGLES = [
  ['resume', 'Resume'],
  ['pause', 'Pause'],
  ['more_memory', 'More memory'] // the guard has stopped it at its limit
];

export class Banner extends Widget {
  private _title = element('div', 'wd-title');
  private _detail = element('div', 'wd-detail');
  // The same three buttons always: none moves under the pointer.
  private _save = this._button(kernel => this._act(kernel, this._save));
  private _toggle = this._button(kernel => this._act(kernel, this._toggle));
  private _explain = this._button(showExplanation);
  private _news = element('div', 'wd-news'); // what a screen reader says
  private _told = ''; // for which it was said
  private _busy = new Set<HTMLButtonElement>(); // wait for the end of a click
  private _doing = ''; // what a click has begun, or how it ended

  constructor(
    private _panel: NotebookPanel,
    private _model: Model
  ) {
    super();
    this.addClass('wd-banner');
    this._news.setAttribute('role', 'status');
    const texts = element('div', 'wd-texts', '', [this._title, this._detail]);
    const buttons = [this._save, this._toggle, this._explain];
    name(this._explain, 'explain', 'Explain');
    const right = element('div', 'wd-buttons', '', buttons);
    this.node.append(texts, right, this._news);
    this.hide();
    _model.changed.connect(this._show, this);
    _panel.sessionContext.kernelChanged.connect(this._show, this);
    _panel.disposed.connect(() => this.dispose());
    this._show();
  }

  dispose(): void {
    this._model.changed.disconnect(this._show, this);
    super.dispose();
  }

  private get _kernel(): string | undefined {
    return this._panel.sessionContext.session?.kernel?.id;
  }

  private _show(): void {
    const task = this._model.task(this._kernel);
    const stays = task !== null && task.open && !this.isHidden;
    if (task === null || !(task.danger || stays)) {
      this._doing = this._told = '';
      setText(this._news, '');
      this.hide();
      return;
    }
    this.node.dataset.level = task.level;
    setText(this._title, task.title || task.reason);
    const reason = task.title ? task.reason : '';
    const detail = [this._model.silence, this._doing, task.saved, task.no_save, reason];
    setText(this._detail, detail.filter(Boolean).join(' · '));
    this.node.title = `${this._title.textContent}\n${this._detail.textContent}`;
    this._offer(task);
    this.show();
    this._tell(task);
  }

  /** Tell a screen reader what is new; the time left alone is not. */
  private _tell(task: ITask): void {
    const about = [task.level, this._toggle.dataset.action, this._doing].join();
    if (about !== this._told) {
      this._told = about;
      setText(this._news, `${this._title.textContent} ${this._doing}`);
    }
  }

  private _offer(task: ITask): void {
    const keys = task.actions;
    name(this._save, 'save', 'Save now');
    this._save.disabled = !keys.includes('save') || this._busy.has(this._save);
    this._save.title = task.no_save;
    const offered = TOGGLES.find(([key]) => keys.includes(key));
    const [key, label] = offered ?? ['pause', 'Pause'];
    name(this._toggle, key, label);
    this._toggle.disabled = !offered || this._busy.has(this._toggle);
  }

  private _button(run: (kernel: string) => Promise<void>): HTMLButtonElement {
    const button = element('button', 'wd-button jp-mod-styled');
    button.type = 'button';
    button.addEventListener('click', () => {
      const kernel = this._kernel;
      if (kernel !== undefined) {
        void run(kernel);
      }
    });
    return button;
  }

  private async _act(kernel: string, button: HTMLButtonElement): Promise<void> {
    const label = button.textContent;
    this._doing = `${label} …`;
    this._busy.add(button);
    this._show();
    try {
      const refused = (await act(kernel, button.dataset.action ?? '')).text;
      this._doing = `${label}: ${refused || 'done.'}`;
    } catch (error) {
      this._doing = `${label}: ${(error as Error).message}`;
    }
    this._busy.delete(button);
    this._show();
    await this._model.refresh();
  }
}

function name(button: HTMLButtonElement, key: string, label: string): void {
  button.dataset.action = key;
  setText(button, label);
}

async function showExplanation(kernel: string): Promise<void> {
  let text: string;
  try {
    text = (await explain(kernel)).text;
  } catch (error) {
    text = (error as Error).message;
  }
  await showDialog({
    title: 'watchdog explain',
    body: textWidget(text),
    buttons: [Dialog.okButton({ label: 'Close' })]
  });
}
