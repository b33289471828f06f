// The item in the status bar, and its popup with the tasks of this server.

import { Popup, showPopup } from '@jupyterlab/statusbar';
import { Widget } from '@lumino/widgets';

import { IState, Model } from './api';
import { element, setText } from './dom';

export class StatusItem extends Widget {
  private _popup: Popup | null = null;
  private _label = element('span', 'wd-label');

  constructor(private _model: Model) {
    super({ node: element('button', 'wd-status jp-mod-highlighted') });
    this.node.append(element('span', 'wd-dot'), this._label);
    this.node.addEventListener('click', () => this._open());
    _model.changed.connect(this._show, this);
    this._show();
  }

  dispose(): void {
    this._model.changed.disconnect(this._show, this);
    super.dispose();
  }

  private _show(): void {
    const state = this._model.state;
    this.setHidden(state === null);
    if (state === null) {
      return;
    }
    this.node.dataset.level = state.level;
    this.node.title = `watchdog: ${state.headline}`;
    setText(this._label, shortText(state));
  }

  private _open(): void {
    if (this._popup === null || this._popup.isDisposed) {
      const body = new TaskList(this._model);
      this._popup = showPopup({
        body,
        anchor: this,
        align: 'left',
        hasDynamicSize: true
      });
    } else {
      this._popup.dispose();
    }
  }
}

function shortText(state: IState): string {
  if (!state.daemon) {
    return 'watchdog: no daemon';
  }
  if (state.silent) {
    return 'watchdog: no answer';
  }
  return state.level === 'ok' ? 'watchdog' : state.headline;
}

class TaskList extends Widget {
  constructor(private _model: Model) {
    super();
    this.addClass('wd-tasks');
    _model.changed.connect(this._show, this);
    this._show();
  }

  dispose(): void {
    this._model.changed.disconnect(this._show, this);
    super.dispose();
  }

  private _show(): void {
    const state = this._model.state;
    const tasks = Object.values(state?.kernels ?? {});
    const rows = tasks.map(task => {
      const facts = [task.title || task.reason, task.saved].filter(Boolean);
      const head = element('div', 'wd-name', '', [
        element('span', 'wd-dot'),
        element('b', '', task.name),
        element('span', 'wd-memory', task.memory)
      ]);
      const lines = facts.map(fact => element('div', 'wd-fact', fact));
      const row = element('div', 'wd-task', '', [head, ...lines]);
      row.dataset.level = task.level;
      return row;
    });
    const headline = state?.headline ?? 'The Jupyter server does not answer.';
    const head = [headline, this._model.silence].filter(Boolean).join(' · ');
    this.node.replaceChildren(element('div', 'wd-headline', head), ...rows);
    if (state?.daemon && !state.silent && rows.length === 0) {
      const none = 'No kernel of this server runs.';
      this.node.append(element('div', 'wd-fact', none));
    }
  }
}
