// The addresses of the server extension, and the state that the page shows.

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';

const VISIBLE_MS = 2000;
const HIDDEN_MS = 10000;
const NO_DAEMON_MS = 30000;
const ANSWER_MS = 10000;
const ACTION_MS = 150000; // the server waits 2 minutes for a save

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
  actions: string[]; // of save, resume, pause, more_memory
  no_save: string; // why save is not among them
}

export interface IState {
  daemon: boolean; // false: no daemon runs
  silent?: boolean; // nobody answered the last request
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

/** The HTTP status of an error; 0: the server did not answer. */
export function statusOf(error: unknown): number {
  const answered = error instanceof ServerConnection.ResponseError;
  return answered ? error.response.status : 0;
}

/** Ask the server extension; an error has the text for the user. */
async function request<T>(
  path: string,
  init: RequestInit = {},
  limit = ANSWER_MS
): Promise<T> {
  const settings = ServerConnection.makeSettings();
  const url = URLExt.join(settings.baseUrl, 'watchdog', path);
  const signal = AbortSignal.timeout(limit);
  const limited = { ...init, signal };
  const response = await ServerConnection.makeRequest(url, limited, settings);
  if (!response.ok) {
    throw await ServerConnection.ResponseError.create(response);
  }
  return response.json();
}

export function explain(kernel: string): Promise<{ text: string }> {
  return request(`explain?kernel=${encodeURIComponent(kernel)}`);
}

export function death(
  kernel: string,
  withinSeconds: number
): Promise<{ death: IDeath | null }> {
  const id = encodeURIComponent(kernel);
  return request(`death?kernel=${id}&within_s=${withinSeconds}`);
}

export function act(kernel: string, action: string): Promise<{ text: string }> {
  const body = JSON.stringify({ kernel, action });
  return request('action', { method: 'POST', body }, ACTION_MS);
}

/** Asks for the state in turns; `changed` says that there is a new one. */
export class Model {
  readonly changed = new Signal<this, void>(this);
  state: IState | null = null;
  private _timer = 0;
  private _asking = false;
  private _ended = false;
  private _answered = Date.now();

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

  /** How long there has been no answer, in words; empty: the last request had one. */
  get silence(): string {
    const seconds = Math.round((Date.now() - this._answered) / 1000);
    return this.state?.silent ? `no answer for ${seconds} s` : '';
  }

  /** Ask now, and then in turns. */
  async refresh(): Promise<void> {
    if (this._asking || this._ended) {
      return;
    }
    this._asking = true;
    window.clearTimeout(this._timer);
    let wait = document.hidden ? HIDDEN_MS : VISIBLE_MS;
    try {
      this.state = await request<IState>('state');
      this._answered = Date.now();
      wait = this.state.daemon ? wait : NO_DAEMON_MS;
    } catch (error) {
      const status = statusOf(error);
      // The server does not have the extension: nothing will change that.
      this._ended = status === 404 && this.state === null;
      this.state = this._ended ? null : silent(this.state, error as Error);
      wait = status >= 400 && status < 500 ? NO_DAEMON_MS : wait;
    }
    this._asking = false;
    this.changed.emit();
    if (!this._ended) {
      this._timer = window.setTimeout(() => void this.refresh(), wait);
    }
  }
}

/** The state without an answer: the kernels are those of the last one. */
function silent(last: IState | null, error: Error): IState {
  return {
    daemon: true,
    silent: true,
    level: 'unknown',
    headline: error.message,
    kernels: last?.kernels ?? {}
  };
}
