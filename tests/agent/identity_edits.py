"""
Edits of small programs:

what a user may change between two starts, and what makes another training.
"""

from __future__ import annotations


def edited(text: str, before: str, after: str) -> str:
    """Return a program with one edit."""
    assert before in text
    return text.replace(before, after)


KERAS_KINDS = ("functional", "subclassed", "sequential")

KERAS = '''
import keras
import numpy as np
from keras import ops

TEMPERATURE = 0.5
UNITS = 4
EPOCHS = 3
BATCH_SIZE = 8
LEARNING_RATE = 0.05


def scaled(value):
    """Divided by the temperature."""
    return value / TEMPERATURE


def summary(model):
    return len(model.layers)


def loss(truth, guess):
    """Mean of squares."""
    error = truth - guess  # the difference
    return ops.mean(ops.square(error))


class Scale(keras.layers.Layer):
    def __init__(self, factor=2.0, **more):
        super().__init__(**more)
        self.factor = factor

    def call(self, x):
        shifted = scaled(x)
        return shifted * self.factor


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(UNITS, activation="relu")
        self.second = keras.layers.Dense(UNITS, activation="tanh")
        self.last = keras.layers.Dense(1)

    def call(self, x, training=False):
        h = self.first(x)
        h = self.second(h)
        return self.last(h)


def data():
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    return x, x.sum(1, keepdims=True)


def functional():
    at = keras.Input((3,))
    left = keras.layers.Dense(UNITS, activation="relu", kernel_regularizer="l2")(at)
    right = keras.layers.Dense(UNITS, activation="tanh")(at)
    joined = keras.layers.Subtract()([left, right])
    joined = keras.layers.Dropout(0.2)(joined)
    joined = Scale(2.0)(joined)
    shown = keras.layers.Lambda(lambda t: t * 3.0)(joined)
    return keras.Model(at, keras.layers.Dense(1)(shown) + 1.0)


def make(kind):
    if kind == "functional":
        model = functional()
    elif kind == "subclassed":
        model = Net()
        model(np.zeros((1, 3), "float32"))
    else:
        model = keras.Sequential(
            [
                keras.layers.Dense(UNITS, activation="relu"),
                keras.layers.Dense(UNITS, activation="tanh"),
                keras.layers.Dense(1),
            ]
        )
        model.build((None, 3))
    optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=0.9)
    model.compile(optimizer, loss, metrics=["mae"])
    return model


def fit(model, callbacks):
    x, y = data()
    history = model.fit(x, y, BATCH_SIZE, EPOCHS, verbose=0, callbacks=[*callbacks])
    return history.history
'''

KERAS_LEGAL = {
    "a new attribute": ("self.factor = factor", "self.factor = factor\n        self.width = 3"),
    "nothing": ("", ""),
    "a comment": ("# the difference", "# truth less guess"),
    "a docstring": ("Mean of squares.", "MSE"),
    "a print in the loss": ("    error = truth", '    print("loss")\n    error = truth'),
    "a print in call": ("        h = self.first(x)", "        print(x)\n        h = self.first(x)"),
    "a local renamed": ("error", "difference"),
    "a local of call renamed": ("shifted", "moved"),
    "a parameter renamed": ("guess", "prediction"),
    "a helper renamed": ("scaled", "divided"),
    "the loss renamed": ("loss", "criterion"),
    "a helper outside": ("return len(model.layers)", "return model.count_params()"),
    "more epochs": ("EPOCHS = 3", "EPOCHS = 30"),
    "a smaller batch": ("BATCH_SIZE = 8", "BATCH_SIZE = 4"),
    "a larger batch": ("BATCH_SIZE = 8", "BATCH_SIZE = 20"),
    "another learning rate": ("LEARNING_RATE = 0.05", "LEARNING_RATE = 0.001"),
    "a schedule": (
        "SGD(LEARNING_RATE,",
        "SGD(keras.optimizers.schedules.CosineDecay(0.1, 100),",
    ),
    "another momentum": ("momentum=0.9", "momentum=0.8"),
    "weight decay": ("momentum=0.9", "momentum=0.9, weight_decay=0.01"),
    "clipping": ("momentum=0.9", "momentum=0.9, clipnorm=1.0"),
    "another metric": ('metrics=["mae"]', 'metrics=["mae", "mse"]'),
    "no metric": (', metrics=["mae"]', ""),
    "run eagerly": ("loss, metrics", "loss, run_eagerly=True, metrics"),
    "compiled by XLA": ("loss, metrics", "loss, jit_compile=True, metrics"),
    "several steps at once": ("loss, metrics", "loss, steps_per_execution=2, metrics"),
    "names of layers": ("Dense(1)", 'Dense(1, name="output")'),
    "another initializer": ("Dense(1)", 'Dense(1, kernel_initializer="zeros")'),
    "seeds of initializers": (
        "Dense(1)",
        "Dense(1, kernel_initializer=keras.initializers.GlorotUniform(7))",
    ),
    "a seed of dropout": ("Dropout(0.2)", "Dropout(0.2, seed=7)"),
    "an import": ("import keras\n", "import json\nimport keras\n"),
    "an alias": ("from keras import ops", "from keras import ops as o\nops = o"),
    "formatting": ("truth - guess", "(truth  -  guess)"),
    "annotations": ("def loss(truth, guess):", "def loss(truth: object, guess: object) -> object:"),
    "a log folder": ("self.factor = factor", 'self.factor = factor\n        self.log_dir = "a"'),
    "a name": ("self.factor = factor", 'self.factor = factor\n        self.run_name = "a"'),
    "an unused function": ("def data():", "def other():\n    return 1\n\n\ndef data():"),
    "a constant's name": ("TEMPERATURE", "HEAT"),
    "a constant written otherwise": ("TEMPERATURE = 0.5", "TEMPERATURE = 5e-1"),
    "a constant for a number": ("Scale(2.0)", "Scale(4.0 / 2.0)"),
    "a number for a constant": ("value / TEMPERATURE", "value / 0.5"),
    "an unused parameter": ("def call(self, x):", "def call(self, x, training=None):"),
    "a line for a value": ("return self.last(h)", "out = self.last(h)\n        return out"),
    "a line less": (
        "        shifted = scaled(x)\n        return shifted * self.factor",
        "        return scaled(x) * self.factor",
    ),
    "an unused shape": (
        "        h = self.first(x)",
        "        rows, _ = x.shape\n        h = self.first(x)",
    ),
    "names of a library": (
        "    return ops.mean(ops.square(error))",
        "    from keras.ops import mean, square\n\n    return mean(square(error))",
    ),
}

TRAIN_STEP = """    def train_step(self, data):
        return super().train_step(data)

    def call(self, x, training=False):"""
KERAS_OTHERS = {
    "activation": (
        'activation="relu"', 'activation="gelu"', KERAS_KINDS, "is gelu in the program, relu"
    ),
    "activations swapped": (
        'UNITS, activation="relu"', 'UNITS, activation="tanh"', KERAS_KINDS, "activation is tanh",
    ),
    "rate": ("Dropout(0.2)", "Dropout(0.7)", ("functional",), "Dropout's rate is 0.7"),
    "regularizer": ('kernel_regularizer="l2"', "", ("functional",), "kernel_regularizer"),
    "rewired": (
        'activation="tanh")(at)', 'activation="tanh")(left)', ("functional",),
        "Dense 2 is given other inputs",
    ),
    "the other way round": (
        "Subtract()([left, right])", "Subtract()([right, left])", ("functional",), "activation is"
    ),
    "merged otherwise": ("Subtract()", "Add()", ("functional",), "is a Add in the program"),
    "a layer more": (
        "joined = Scale(2.0)(joined)",
        "joined = Scale(2.0)(keras.layers.ReLU()(joined))",
        ("functional",),
        "ReLU (ReLU) is in the program only",
    ),
    "an operation's constant": (
        "(shown) + 1.0", "(shown) + 2.0", ("functional",), "other inputs"
    ),
    "an argument of a layer": ("Scale(2.0)", "Scale(4.0)", ("functional",), "Scale's factor is 4"),
    "a helper of call": (
        "return value / TEMPERATURE", "return value * TEMPERATURE", ("functional",),
        "the code of Scale.call (train.py:",
    ),
    "a constant of the module": (
        "TEMPERATURE = 0.5", "TEMPERATURE = 0.9", ("functional",), "(scaled, which it calls)"
    ),
    "a lambda": ("t * 3.0", "t * 4.0", ("functional",), "Lambda's function"),
    "call": (
        "h = self.second(h)", "h = self.second(h) * 2", ("subclassed",), "the code of Net.call"
    ),
    "call in another order": (
        "h = self.first(x)\n        h = self.second(h)",
        "h = self.second(x)\n        h = self.first(h)",
        ("subclassed",),
        "the code of Net.call",
    ),
    "loss": ("ops.square(error)", "ops.abs(error)", KERAS_KINDS, "the code of loss (train.py:"),
    "loss of the library": (
        "compile(optimizer, loss,", 'compile(optimizer, "mse",', KERAS_KINDS, "the loss is mse"
    ),
    "optimizer": ("SGD(LEARNING_RATE, momentum=0.9)", "Adam(LEARNING_RATE)", KERAS_KINDS,
        "the optimizer is Adam in the program, SGD in the rescue"),
    "rows": ("size=(40, 3)", "size=(80, 3)", KERAS_KINDS, "80 rows in the program, 40 in"),
    "elements": ('astype("float32")', 'astype("float64")', KERAS_KINDS, "a row of the data is"),
    "train_step": (
        "    def call(self, x, training=False):",
        TRAIN_STEP,
        ("subclassed",),
        "the code of Net.train_step",
    ),
}  # fmt: skip

TORCH = '''
import torch
from torch import nn

TEMPERATURE = 0.5
WIDTH = 4
LR = 0.1
BATCH_SIZE = 4
EPOCHS = 3


def scaled(value):
    """Divided by the temperature."""
    return value / TEMPERATURE


def validate(model):
    return float(model(torch.ones(1, 3)).sum())


class Block(nn.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.factor = factor

    def forward(self, x):
        """One block."""
        hidden = self.inner(x)  # the layer
        print("hidden")
        return scaled(hidden) * self.factor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, WIDTH)
        self.act = nn.ReLU()
        self.block = Block(2.0)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x):
        h = self.act(self.first(x))
        return self.last(self.drop(self.block(h)))


def make():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.1)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def train(rescue, model, optimizer, scheduler, steps):
    power = 2
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(BATCH_SIZE, 3)).pow(power).mean().backward()
        optimizer.step()
        scheduler.step()
        rescue.step()
'''

TORCH_LEGAL = {
    "a metric in the loop": (
        "        rescue.step()",
        "        print(model(torch.ones(1, 3)).mean())\n        rescue.step()",
    ),
    "nothing": ("", ""),
    "a comment": ("# the layer", "# another"),
    "a docstring": ("One block.", "A block."),
    "no print": ('        print("hidden")\n', ""),
    "another print": ('print("hidden")', 'print(f"{hidden.mean().item():.3f}")'),
    "a local renamed": ("hidden", "inside"),
    "a parameter renamed": ("def forward(self, x):\n        h = self.act(self.first(x))",
                            "def forward(self, rows):\n        h = self.act(self.first(rows))"),
    "a helper renamed": ("scaled", "divided"),
    "a class renamed": ("Block", "Piece"),
    "the model renamed": ("Net", "Network"),
    "an import in it": ("        print(", "        import json\n        print("),
    "a helper outside": (".sum())", ".mean())"),
    "the loop": ("        optimizer.zero_grad()", "        optimizer.zero_grad(set_to_none=True)"),
    "more epochs": ("EPOCHS = 3", "EPOCHS = 30"),
    "a smaller batch": ("BATCH_SIZE = 4", "BATCH_SIZE = 2"),
    "another learning rate": ("LR = 0.1", "LR = 0.01"),
    "another momentum": ("momentum=0.9", "momentum=0.8"),
    "weight decay": ("momentum=0.9", "momentum=0.9, weight_decay=0.1"),
    "another schedule step": ("optimizer, 3", "optimizer, 5"),
    "another gamma": ("gamma=0.1", "gamma=0.5"),
    "in place": ("nn.ReLU()", "nn.ReLU(inplace=True)"),
    "an import": ("import torch\n", "import json\nimport torch\n"),
    "a constant's name": ("TEMPERATURE", "HEAT"),
    "a constant written otherwise": ("TEMPERATURE = 0.5", "TEMPERATURE = 5e-1"),
    "formatting": ("scaled(hidden) * self.factor", "(scaled(hidden)*self.factor)"),
    "annotations": ("def forward(self, x):", "def forward(self, x: torch.Tensor) -> torch.Tensor:"),
    "an assertion": ("        print(", "        assert hidden is not None\n        print("),
    "timing": ("        print(", "        import time\n        at = time.time()\n        print("),
    "a log folder": ("self.factor = factor", 'self.factor = factor\n        self.log_dir = "a"'),
    "another seed": ("manual_seed(0)", "manual_seed(1)"),
    "a layer frozen": (
        "    model = Net()",
        "    model = Net()\n    model.first.requires_grad_(False)",
    ),
    "a walrus": (
        "        model(torch.ones(BATCH_SIZE, 3)).pow(power).mean().backward()",
        "        (loss := model(torch.ones(BATCH_SIZE, 3)).pow(power).mean()).backward()",
    ),
    "a line for the loss": (
        "        model(torch.ones(BATCH_SIZE, 3)).pow(power).mean().backward()",
        """        guess = model(torch.ones(BATCH_SIZE, 3))
        loss = guess.pow(power).mean()
        loss.backward()""",
    ),
    "mixed precision": (
        "model(torch.ones(BATCH_SIZE, 3)).pow(power).mean().backward()",
        """scaler = torch.amp.GradScaler("cpu", enabled=False)
        scaler.scale(model(torch.ones(BATCH_SIZE, 3)).pow(power).mean()).backward()""",
    ),
    "accumulation": (
        """    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(BATCH_SIZE, 3)).pow(power).mean().backward()""",
        """    accum_steps = 2
    for _ in range(steps):
        optimizer.zero_grad()
        (model(torch.ones(BATCH_SIZE, 3)).pow(power).mean() / accum_steps).backward()""",
    ),
    "a device": (
        "model(torch.ones(BATCH_SIZE, 3)).pow", 'model(torch.ones(1, 3).to("cpu")).cpu().pow'
    ),
    "a line for the data": (
        "        model(torch.ones(BATCH_SIZE, 3)).pow",
        "        x = torch.ones(BATCH_SIZE, 3)\n        model(x).pow",
    ),
    "a constant moved into an outer loop": (
        "    power = 2\n    for _ in range(steps):",
        "    for _ in range(1):\n      power = 2\n      for _ in range(steps):",
    ),
    "how weights begin": (
        "    model = Net()", "    model = Net()\n    nn.init.zeros_(model.last.bias)"
    ),
}  # fmt: skip

TORCH_OTHERS = {
    "activation": ("nn.ReLU()", "nn.GELU()", "model.act is a GELU in the program, a ReLU in"),
    "rate": ("Dropout(0.2)", "Dropout(0.5)", "model.drop's p is 0.5 in the program"),
    "attribute": ("Block(2.0)", "Block(3.0)", "model.block's factor is 3 in the program, 2 in"),
    "forward": ("* self.factor", "- self.factor", "the code of Block.forward (train.py:"),
    "helper": ("value / TEMP", "value * TEMP", "has changed (scaled, which it calls)"),
    "constant": ("TEMPERATURE = 0.5", "TEMPERATURE = 0.9", "(scaled, which it calls)"),
    "order": ("self.drop(self.block(h))", "self.block(self.drop(h))", "the code of Net.forward"),
    "optimizer": (
        "SGD(model.parameters(), lr=LR, momentum=0.9)",
        "AdamW(model.parameters(), lr=LR)",
        "optimizer is AdamW in the program, SGD in the rescue",
    ),
    "loss in the loop": (
        ".pow(power).mean()", ".abs().mean()", "the code of the loss (train.py:"
    ),
    "factor in the loop": (
        ".pow(power).mean()", ".pow(power).mean().mul(3)", "the code of the loss (train.py:"
    ),
    "input in the loop": (
        "model(torch.ones(BATCH_SIZE, 3))",
        "model(-torch.ones(BATCH_SIZE, 3))",
        "the code of the loss (train.py:",
    ),
    "a type in the loop": (
        ".pow(power)", ".to(torch.float64).pow(power)", "the code of the loss (train.py:"
    ),
    "a constant in the loop": ("power = 2", "power = 4", "the code of the loss (train.py:"),
    "a layer more": (
        "        self.drop =", "        self.more = nn.Tanh()\n        self.drop =",
        "model.more (Tanh) is in the program only",
    ),
}  # fmt: skip

TENSORFLOW = '''
import keras
import tensorflow as tf

TEMPERATURE = 0.5
LR = 0.1


def scaled(value):
    """Divided by the temperature."""
    return value / TEMPERATURE


class Scale(tf.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.weight = tf.Variable([1.0, 2.0])
        self.factor = factor

    def __call__(self, x):
        """Scaled."""
        moved = scaled(x)  # the first
        return moved * self.weight * self.factor


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(4, activation="relu")
        self.last = keras.layers.Dense(2)

    def call(self, x):
        h = self.first(x)
        return self.last(h)


def make():
    model = Net()
    model(tf.zeros((1, 3)))
    optimizer = keras.optimizers.SGD(LR, momentum=0.9)
    return {"model": model, "optimizer": optimizer, "scale": Scale(2.0)}


def train(rescue, model, optimizer, scale, steps):
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(scale(model(tf.ones((2, 3)))) ** 2)
        trained = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
        rescue.step()
'''

TENSORFLOW_LEGAL = {
    "nothing": ("", ""),
    "a comment": ("# the first", "# 1"),
    "a docstring": ("Scaled.", "It scales."),
    "a print": ("        moved = ", "        tf.print(x)\n        moved = "),
    "a local renamed": ("moved", "divided"),
    "a helper renamed": ("scaled", "divided_by"),
    "the module renamed": ("Scale", "Factor"),
    "the loop": ("        rescue.step()", "        print(loss)\n        rescue.step()"),
    "another learning rate": ("LR = 0.1", "LR = 0.01"),
    "another momentum": ("momentum=0.9", "momentum=0.8"),
    "clipping": ("momentum=0.9", "momentum=0.9, clipnorm=1.0"),
    "another initializer": ("Dense(2)", 'Dense(2, kernel_initializer="zeros")'),
    "a constant's name": ("TEMPERATURE", "HEAT"),
    "a tf.function": ("    def __call__", "    @tf.function\n    def __call__"),
    "annotations": ("def call(self, x):", "def call(self, x: tf.Tensor) -> tf.Tensor:"),
}

TENSORFLOW_OTHERS = {
    "loss in the loop": (
        "tf.reduce_mean(",
        "tf.reduce_sum(",
        "reduce_sum is used in the program, reduce_mean",
    ),
    "power in the loop": ("** 2)", "** 4)", "the code of the loss (train.py:"),
    "activation": ('"relu"', '"gelu"', "Dense 1's activation is gelu in the program, relu in"),
    "call": ("self.last(h)", "self.last(h) * 2", "the code of Net.call (train.py:"),
    "module": ("* self.factor", "- self.factor", "the code of Scale.__call__ (train.py:"),
    "helper": ("value / TEMP", "value * TEMP", "has changed (scaled, which it calls)"),
    "constant": ("TEMPERATURE = 0.5", "TEMPERATURE = 0.9", "(scaled, which it calls)"),
    "attribute": ("Scale(2.0)}", "Scale(3.0)}", "scale's factor is 3 in the program, 2 in"),
    "optimizer": ("SGD(LR, momentum=0.9)", "Nadam(LR)", "optimizer is Nadam in the program, SGD"),
}
