import torch
from reference import utils


def train_one_epoch(model, criterion, optimizer, data_loader, device, epoch, print_freq):
    model.train()
    metric_logger = utils.MetricLogger(delimiter="  ")
    header = f"Epoch: [{epoch}]"
    for image, target in metric_logger.log_every(data_loader, print_freq, header):
        image, target = image.to(device), target.to(device)
        output = model(image)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metric_logger.update(loss=loss.item(), lr=optimizer.param_groups[0]["lr"])
    return {name: meter.global_avg for name, meter in metric_logger.meters.items()}


@torch.inference_mode()
def evaluate(model, criterion, data_loader, device):
    model.eval()
    metric_logger = utils.MetricLogger(delimiter="  ")
    for image, target in metric_logger.log_every(data_loader, 100, "Test:"):
        output = model(image.to(device))
        acc1 = (output.argmax(1) == target.to(device)).float().mean()
        metric_logger.update(loss=criterion(output, target).item(), acc1=acc1.item())
    return {name: meter.global_avg for name, meter in metric_logger.meters.items()}
