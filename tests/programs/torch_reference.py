"""A training of several files, as the references of a vision library have them."""

import argparse
import json

import torch
from reference import presets, utils
from reference.engine import evaluate, train_one_epoch
from torch.utils.data import DataLoader


def get_args_parser():
    parser = argparse.ArgumentParser(description="Classification")
    parser.add_argument("--epochs", default=5, type=int)
    parser.add_argument("--batch-size", default=8, type=int)
    parser.add_argument("--lr", default=0.05, type=float)
    parser.add_argument("--print-freq", default=4, type=int)
    return parser


def main(args):
    torch.manual_seed(21)
    device = torch.device("cpu")
    dataset, dataset_test = presets.load_data()
    data_loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True)
    data_loader_test = DataLoader(dataset_test, batch_size=args.batch_size)
    model = presets.build_model().to(device)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    lr_scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 4])
    max_accuracy = 0.0
    for epoch in range(args.epochs):
        train_stats = train_one_epoch(
            model, criterion, optimizer, data_loader, device, epoch, args.print_freq
        )
        lr_scheduler.step()
        test_stats = evaluate(model, criterion, data_loader_test, device)
        max_accuracy = max(max_accuracy, test_stats["acc1"])
        log = {**{f"train_{k}": v for k, v in train_stats.items()}, "epoch": epoch}
        utils.write_line("log.txt", json.dumps(log))
    torch.save({**model.state_dict(), "best": torch.tensor(max_accuracy)}, "model.pt")


if __name__ == "__main__":
    main(get_args_parser().parse_args([]))
