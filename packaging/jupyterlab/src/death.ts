// Why a kernel died, what was saved, and the offer to resume.

import { Dialog, ISessionContext, showDialog } from '@jupyterlab/apputils';
import {
  INotebookTracker,
  NotebookActions,
  NotebookPanel
} from '@jupyterlab/notebook';
import { Widget } from '@lumino/widgets';

import { death, IDeath, statusOf } from './api';
import { element } from './dom';

const RESUME = '%load_ext watchdog_app.agent\nwatchdog.resume()';
const PATIENCE_MS = 15000; // until the daemon knows the cause
const SILENT_MS = 60000; // the same after an error: memory that ran out slows all
const AGAIN_MS = 500;
const OLDEST_S = 30; // the server notices a death some seconds later

const watched = new WeakSet<ISessionContext>(); // the views of a notebook share one

/** Explain each death of a notebook's kernel, which Jupyter reports first. */
export function watchForDeath(
  session: ISessionContext,
  notebooks: INotebookTracker
): void {
  if (watched.has(session)) {
    return;
  }
  watched.add(session);
  let looking = false;
  let last = 0; // time of the death that was shown
  session.statusChanged.connect(async (context, status) => {
    const kernel = context.session?.kernel?.id;
    if (!kernel || looking || !['autorestarting', 'dead'].includes(status)) {
      return;
    }
    looking = true;
    const found = await lookUp(kernel, last);
    looking = false;
    const panel = notebooks.find(each => each.sessionContext === session);
    if (found !== null && panel) {
      last = found.at_unix_s;
      await offer(panel, found);
    }
  });
}

/** The death of a kernel; null: the daemon knows none, or does not answer. */
async function lookUp(kernel: string, last: number): Promise<IDeath | null> {
  const begin = Date.now();
  let patience = PATIENCE_MS;
  while (Date.now() - begin < patience) {
    const within = OLDEST_S + (Date.now() - begin) / 1000;
    try {
      const found = (await death(kernel, within)).death;
      if (found !== null && found.at_unix_s !== last) {
        return found;
      }
    } catch (error) {
      if (statusOf(error) === 404) {
        return null; // not a kernel of this server
      }
      patience = SILENT_MS;
    }
    await new Promise(done => setTimeout(done, AGAIN_MS));
  }
  return null;
}

async function offer(panel: NotebookPanel, found: IDeath): Promise<void> {
  const more = element('details', 'wd-more', '', [
    element('summary', '', 'How we know, and what to do'),
    element('pre', 'wd-text', found.more)
  ]);
  const node = element('div', 'wd-death', '', [
    element('p', 'wd-cause', found.cause),
    element('p', 'wd-saved', found.saved),
    more
  ]);
  const close = Dialog.cancelButton({ label: 'Close' });
  const resume = Dialog.okButton({
    label: 'Resume',
    caption: 'Runs the cells up to the training, which continues from its rescue'
  });
  const answer = await showDialog({
    title: 'watchdog: why the kernel died',
    body: new Widget({ node }),
    buttons: found.can_resume ? [close, resume] : [close],
    defaultButton: 0 // Enter never resumes by accident
  });
  if (answer.button.label === resume.label && !panel.isDisposed) {
    await resumeIn(panel);
  }
}

/** Run the documented lines in a cell of the notebook, where their output appears. */
async function resumeIn(panel: NotebookPanel): Promise<void> {
  const { content: notebook, sessionContext } = panel;
  if (sessionContext.kernelDisplayStatus === 'dead') {
    await sessionContext.restartKernel();
  }
  const earlier = notebook.widgets.findIndex(
    cell => cell.model.sharedModel.getSource() === RESUME
  );
  notebook.deselectAll();
  if (earlier >= 0) {
    notebook.activeCellIndex = earlier;
  } else {
    NotebookActions.insertBelow(notebook);
    notebook.activeCell?.model.sharedModel.setSource(RESUME);
  }
  await NotebookActions.run(notebook, sessionContext);
}
