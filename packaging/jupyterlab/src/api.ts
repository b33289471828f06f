// The addresses of the server extension, and the state that the page shows.

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';

const VISIBLE_MS = 2000;
const HIDDEN_MS = 10000;
const NO_DAEMON_MS = 30000;

export type Level = 'ok' | 'watch' | 'warning' | 'critical' | 'unknown';

export interface ITask {
  name: string;
  level: Level;
  danger: boolean;
  open: boolean; // an incident names it: the danger is not over yet
  title: string;
  reason: string;
  memory: string;
  saved: string;
  actions: string[]; // of save, pause, resume
}

export interface IState {
  daemon: boolean;
  level: Level;
  headline: string;
  kernels: { [id: string]: ITask };
}

export interface IDeath {
  at_unix_s: number;
  cause: string;
  saved: string;
  more: string;
  can_resume: boolean;
}

/** Ask the server extension; an error has the text for the user. */
async function request<T>(path: string, init: RequestInit): Promise<T> {
  const settings = ServerConnection.makeSettings();
  const url = URLExt.join(settings.baseUrl, 'watchdog', path);
  const response = await ServerConnection.makeRequest(url, init, settings);
  if (!response.ok) {
    throw await ServerConnection.ResponseError.create(response);
  }
  return response.json();
}

export function explain(kernel: string): Promise<{ text: string }> {
  return request(`explain?kernel=${encodeURIComponent(kernel)}`, {});
}

export function death(
  kernel: string,
  withinSeconds: number
): Promise<{ death: IDeath | null }> {
  const id = encodeURIComponent(kernel);
  return request(`death?kernel=${id}&within_s=${withinSeconds}`, {});
}

export function act(kernel: string, action: string): Promise<{ text: string }> {
  const body = JSON.stringify({ kernel, action });
  return request('action', { method: 'POST', body });
}

/** Asks for the state in turns; `changed` says that there is a new one. */
export class Model {
  readonly changed = new Signal<this, void>(this);
  state: IState | null = null;
  private _timer = 0;
  private _asking = false;
  private _ended = false;

  constructor() {
    document.addEventListener('visibilitychange', () => {
      if (!document.hidden && this.state?.daemon) {
        void this.refresh();
      }
    });
    void this.refresh();
  }

  task(kernel: string | undefined): ITask | null {
    return (kernel && this.state?.kernels[kernel]) || null;
  }

  /** Ask now, and then in turns. */
  async refresh(): Promise<void> {
    if (this._asking || this._ended) {
      return;
    }
    this._asking = true;
    window.clearTimeout(this._timer);
    try {
      this.state = await request<IState>('state', {});
    } catch (error) {
      this.state = null;
      // The server does not have the extension: nothing will change that.
      this._ended =
        error instanceof ServerConnection.ResponseError &&
        error.response.status === 404;
    }
    this._asking = false;
    this.changed.emit();
    if (!this._ended) {
      const shown = document.hidden ? HIDDEN_MS : VISIBLE_MS;
      const wait = this.state?.daemon ? shown : NO_DAEMON_MS;
      this._timer = window.setTimeout(() => void this.refresh(), wait);
    }
  }
}
