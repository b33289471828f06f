"""A PyTorch loop with or without the agent; an option makes it leak in its own thread."""

from manners import BATCH, Diary, arguments, data

options = arguments()

import torch  # noqa: E402

torch.manual_seed(5)
torch.set_num_threads(1)
diary = Diary(options)


class Samples(torch.utils.data.Dataset):
    """A data set whose first sample of each batch can be large."""

    def __init__(self):
        self.features, self.labels = (torch.from_numpy(each) for each in data(options.steps))
        self.read = 0

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        if self.read % BATCH == 0:
            diary.fetch(self.read // BATCH + 1)
        self.read += 1
        return self.features[index], self.labels[index].long()


width = max(32, int((options.state_mb * 1e6 / 4 / 3) ** 0.5))
model = torch.nn.Sequential(
    torch.nn.Linear(32, width),
    torch.nn.ReLU(),
    torch.nn.Dropout(0.2),
    torch.nn.Linear(width, width),
    torch.nn.ReLU(),
    torch.nn.Linear(width, 5),
)
optimizer = torch.optim.Adam(model.parameters())
batches = torch.utils.data.DataLoader(Samples(), BATCH, shuffle=True)


def train(x, y):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


if options.no_agent:
    step = 0
    for _epoch in range(options.epochs):
        for x, y in batches:
            step += 1
            diary.begin(step)
            diary.step(step, float(train(x, y)))
else:
    from watchdog_app.agent.torch import Rescue

    rescue = Rescue(options.rescues, model=model, optimizer=optimizer)
    for _epoch in rescue.epochs(options.epochs):
        for x, y in rescue.data(batches):
            diary.begin(rescue.step_number + 1)
            loss = train(x, y)
            diary.step(rescue.step_number + 1, float(loss))
            rescue.step(loss)
    rescue.finish()
