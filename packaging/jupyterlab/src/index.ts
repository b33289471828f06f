// The extension: an item in the status bar, a banner and a dialog in notebooks.

import {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IStatusBar } from '@jupyterlab/statusbar';

import { Model } from './api';
import { Banner } from './banner';
import { watchForDeath } from './death';
import { StatusItem } from './status';

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'watchdog-app:plugin',
  description: 'Shows when a training runs out of memory, and what was saved.',
  autoStart: true,
  optional: [INotebookTracker, IStatusBar], // Notebook 7 has no status bar
  activate: (
    _app: JupyterFrontEnd,
    notebooks: INotebookTracker | null,
    statusBar: IStatusBar | null
  ) => {
    const model = new Model();
    statusBar?.registerStatusItem('watchdog-app:status', {
      item: new StatusItem(model),
      align: 'left',
      rank: 10
    });
    notebooks?.widgetAdded.connect((_, panel) => {
      panel.contentHeader.insertWidget(0, new Banner(panel, model));
      watchForDeath(panel.sessionContext, notebooks);
    });
  }
};

export default plugin;
