"""
The second holdout of bench/estimate.py, written by another person than the author of the rules.

It has other layer families, optimizers and precisions, several inputs, masks, tied weights and
activation checkpointing; Keras models train with `fit`.
"""

from __future__ import annotations

# (model, batch, optimizer, settings of the training)
CASES = (
    ("keras_convnext", 8, "adamw", {}),
    ("keras_convnext", 48, "adamw", {}),
    ("keras_dense_blocks", 32, "sgd", {}),
    ("keras_separable", 48, "momentum", {}),
    ("keras_audio", 32, "adam", {}),
    ("keras_masked_rnn", 64, "adam", {}),
    ("keras_masked_rnn", 512, "adam", {}),
    ("keras_attention", 64, "lion", {}),
    ("keras_two_inputs", 256, "adafactor", {}),
    ("keras_transposed", 128, "adam", {}),
    ("keras_big_embedding", 256, "adam", {}),
    ("keras_wide_dense", 256, "adam", {}),
    ("keras_mobilenet96", 64, "adam", {}),
    ("keras_resnet96", 4, "sgd", {}),
    ("keras_resnet96", 48, "momentum", {}),
    ("keras_efficientnet96", 32, "adamw", {}),
    ("keras_convnext", 32, "adamw", {"jit": True}),
    ("keras_attention", 64, "adam", {"jit": True}),
    ("keras_mobilenet96", 32, "adam", {"jit": True}),
    ("torch_basic_resnet", 64, "momentum", {}),
    ("torch_vit", 32, "adamw", {}),
    ("torch_vit", 2, "adamw", {}),
    ("torch_words_lstm", 128, "adam", {}),
    ("torch_translator", 32, "adam", {}),
    ("torch_unet_small", 8, "adam", {}),
    ("torch_mixer", 64, "adamw", {}),
    ("torch_gpt", 8, "adamw", {}),
    ("torch_gpt_checkpointed", 8, "adamw", {}),
    ("torch_gpt", 8, "adamw", {"precision": "bfloat16"}),
    ("torch_basic_resnet", 32, "sgd", {"precision": "bfloat16"}),
)

# For each input: shape of one example and, for integers, the number of different values.
INPUTS = {
    "keras_convnext": [((96, 96, 3), None)],
    "keras_dense_blocks": [((96, 96, 3), None)],
    "keras_separable": [((128, 128, 3), None)],
    "keras_audio": [((8000, 1), None)],
    "keras_masked_rnn": [((80,), 10_000)],
    "keras_attention": [((128,), 12_000)],
    "keras_two_inputs": [((64, 64, 3), None), ((200,), None)],
    "keras_transposed": [((64,), None)],
    "keras_big_embedding": [((40,), 1_000_000)],
    "keras_wide_dense": [((4000,), None)],
    "keras_mobilenet96": [((96, 96, 3), None)],
    "keras_resnet96": [((96, 96, 3), None)],
    "keras_efficientnet96": [((96, 96, 3), None)],
    "torch_basic_resnet": [((3, 96, 96), None)],
    "torch_vit": [((3, 128, 128), None)],
    "torch_words_lstm": [((60,), 20_000)],
    "torch_translator": [((64,), 8000), ((64,), 8000)],
    "torch_unet_small": [((3, 128, 128), None)],
    "torch_mixer": [((3, 96, 96), None)],
    "torch_gpt": [((256,), 16_000)],
    "torch_gpt_checkpointed": [((256,), 16_000)],
}


def keras_convnext():
    import keras

    layers = keras.layers
    inputs = layers.Input((96, 96, 3))
    x = layers.LayerNormalization()(layers.Conv2D(64, 4, strides=4)(inputs))
    for width, count in ((64, 2), (128, 2), (256, 4)):
        if width != 64:
            x = layers.Conv2D(width, 2, strides=2)(layers.LayerNormalization()(x))
        for _ in range(count):
            y = layers.DepthwiseConv2D(7, padding="same")(x)
            y = layers.LayerNormalization(epsilon=1e-6)(y)
            y = layers.Dense(4 * width, activation="gelu")(y)
            x = layers.Add()([x, layers.Dense(width)(y)])
    x = layers.LayerNormalization()(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, layers.Dense(50, activation="softmax")(x))


def keras_dense_blocks():
    import keras

    layers = keras.layers
    inputs = layers.Input((96, 96, 3))
    x = layers.Conv2D(48, 5, strides=2, padding="same")(inputs)
    for _ in range(2):
        for _ in range(6):
            y = layers.ReLU()(layers.BatchNormalization()(x))
            y = layers.Conv2D(24, 3, padding="same", use_bias=False)(y)
            x = layers.Concatenate()([x, y])
        x = layers.AveragePooling2D(2)(layers.Conv2D(96, 1)(x))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


def keras_separable():
    import keras

    layers = keras.layers
    inputs = layers.Input((128, 128, 3))
    x = layers.Conv2D(32, 3, strides=2, padding="same", use_bias=False)(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    for width in (64, 128, 256):
        short = layers.Conv2D(width, 1, strides=2, padding="same", use_bias=False)(x)
        for _ in range(2):
            x = layers.SeparableConv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Add()([layers.MaxPooling2D(3, strides=2, padding="same")(x), short])
    x = layers.Dropout(0.3)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, layers.Dense(30, activation="softmax")(x))


def keras_audio():
    import keras

    layers = keras.layers
    model = keras.Sequential([layers.Input((8000, 1))])
    for filters, stride in ((64, 4), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        model.add(layers.Conv1D(filters, 9, strides=stride, padding="same"))
        model.add(layers.BatchNormalization())
        model.add(layers.Activation("relu"))
    model.add(layers.GlobalMaxPooling1D())
    model.add(layers.Dense(128, activation="relu"))
    model.add(layers.Dense(12, activation="softmax"))
    return model


def keras_masked_rnn():
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((80,), dtype="int32"),
            layers.Embedding(10_000, 128, mask_zero=True),
            layers.Bidirectional(layers.LSTM(128, return_sequences=True)),
            layers.Bidirectional(layers.GRU(64)),
            layers.Dense(64, activation="relu"),
            layers.Dense(5, activation="softmax"),
        ]
    )


def keras_attention():
    import keras

    layers = keras.layers
    inputs = layers.Input((128,), dtype="int32")
    x = layers.Embedding(12_000, 192)(inputs)
    for _ in range(3):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(6, 32, dropout=0.1)(y, y)])
        y = layers.Dense(768, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dropout(0.1)(layers.Dense(192)(y))])
    x = layers.LayerNormalization()(layers.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, layers.Dense(20, activation="softmax")(x))


def keras_two_inputs():
    import keras

    layers = keras.layers
    picture, table = layers.Input((64, 64, 3), name="picture"), layers.Input((200,), name="table")
    x = picture
    for filters in (32, 64, 128):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.GlobalAveragePooling2D()(x)
    y = layers.Dense(512, activation="relu")(table)
    y = layers.Dropout(0.2)(layers.Dense(256, activation="relu")(y))
    x = layers.Dense(128, activation="relu")(layers.Concatenate()([x, y]))
    return keras.Model([picture, table], layers.Dense(8, activation="softmax")(x))


def keras_transposed():
    import keras

    layers = keras.layers
    inputs = layers.Input((64,))
    x = layers.Reshape((8, 8, 128))(layers.Dense(8 * 8 * 128, activation="relu")(inputs))
    for filters in (128, 64, 32):
        x = layers.Conv2DTranspose(filters, 4, strides=2, padding="same")(x)
        x = layers.LeakyReLU()(layers.BatchNormalization()(x))
    return keras.Model(inputs, layers.Conv2D(3, 5, padding="same", activation="tanh")(x))


def keras_big_embedding():
    import keras

    layers = keras.layers
    inputs = layers.Input((40,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(1_000_000, 64)(inputs))
    x = layers.Dense(256, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


def keras_wide_dense():
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((4000,)),
            layers.Dense(6000, activation="relu"),
            layers.Dense(3000, activation="relu"),
            layers.Dense(200, activation="softmax"),
        ]
    )


def keras_mobilenet96():
    import keras

    return keras.applications.MobileNetV2(weights=None, input_shape=(96, 96, 3), classes=10)


def keras_resnet96():
    import keras

    return keras.applications.ResNet50(weights=None, input_shape=(96, 96, 3), classes=10)


def keras_efficientnet96():
    import keras

    return keras.applications.EfficientNetB0(weights=None, input_shape=(96, 96, 3), classes=10)


def torch_basic_resnet():
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before, after, stride):
            super().__init__()
            self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
            self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
            self.norm, self.other = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
            self.relu = nn.ReLU(inplace=True)
            self.short = nn.Sequential()
            if stride != 1:
                self.short = nn.Sequential(
                    nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
                )

        def forward(self, x):
            y = self.relu(self.norm(self.first(x)))
            return self.relu(self.other(self.second(y)) + self.short(x))

    parts = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)]
    parts.append(nn.MaxPool2d(3, 2, 1))
    before = 64
    for width in (64, 128, 256, 512):
        parts += [Block(before, width, 1 if width == 64 else 2), Block(width, width, 1)]
        before = width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def torch_vit():
    import torch
    from torch import nn

    class ViT(nn.Module):
        def __init__(self):
            super().__init__()
            self.cut = nn.Conv2d(3, 384, 16, 16)
            self.first = nn.Parameter(torch.zeros(1, 1, 384))
            self.place = nn.Parameter(torch.zeros(1, 65, 384))
            layer = nn.TransformerEncoderLayer(
                384, 6, 1536, 0.1, activation="gelu", batch_first=True, norm_first=True
            )
            self.body = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
            self.last = nn.Sequential(nn.LayerNorm(384), nn.Linear(384, 100))

        def forward(self, x):
            x = self.cut(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.place
            return self.last(self.body(x)[:, 0])

    return ViT()


def torch_words_lstm():
    from torch import nn

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(20_000, 200)
            self.lstm = nn.LSTM(200, 300, 2, batch_first=True, dropout=0.2, bidirectional=True)
            self.last = nn.Linear(600, 4)

        def forward(self, x):
            return self.last(self.lstm(self.embedding(x))[0].mean(1))

    return Words()


def torch_translator():
    from torch import nn

    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.source, self.target = nn.Embedding(8000, 256), nn.Embedding(8000, 256)
            self.body = nn.Transformer(256, 8, 3, 3, 1024, batch_first=True)
            self.last = nn.Linear(256, 8000)

        def forward(self, source, target):
            mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
            return self.last(self.body(self.source(source), self.target(target), tgt_mask=mask))

    return Translator()


def torch_unet_small():
    import torch
    from torch import nn

    def double(before, after):
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU(),
            nn.Conv2d(after, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU(),
        )  # fmt: skip

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            widths = (48, 96, 192)
            self.down = nn.ModuleList(
                double(a, b) for a, b in zip((3, *widths), widths, strict=False)
            )
            self.middle = double(192, 384)
            self.up = nn.ModuleList(double(3 * w, w) for w in reversed(widths))
            self.last = nn.Conv2d(48, 2, 1)

        def forward(self, x):
            skips = []
            for part in self.down:
                x = part(x)
                skips.append(x)
                x = nn.functional.max_pool2d(x, 2)
            x = self.middle(x)
            for part in self.up:
                x = nn.functional.interpolate(x, scale_factor=2, mode="bilinear")
                x = part(torch.cat([x, skips.pop()], 1))
            return self.last(x)

    return UNet()


def torch_mixer():
    from torch import nn

    class Mixer(nn.Module):
        def __init__(self, tokens, width):
            super().__init__()
            self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
            self.along = nn.Sequential(nn.Linear(tokens, 256), nn.GELU(), nn.Linear(256, tokens))
            self.across = nn.Sequential(nn.Linear(width, 1024), nn.GELU(), nn.Linear(1024, width))

        def forward(self, x):
            x = x + self.along(self.one(x).transpose(1, 2)).transpose(1, 2)
            return x + self.across(self.two(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cut = nn.Conv2d(3, 256, 8, 8)
            self.body = nn.Sequential(*(Mixer(144, 256) for _ in range(8)))
            self.last = nn.Linear(256, 10)

        def forward(self, x):
            return self.last(self.body(self.cut(x).flatten(2).transpose(1, 2)).mean(1))

    return Model()


def torch_gpt(checkpointed=False):
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
            )

        def forward(self, x):
            rows, length, width = x.shape
            q, k, v = (
                part.view(rows, length, 6, width // 6).transpose(1, 2)
                for part in self.qkv(self.one(x)).chunk(3, -1)
            )
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
            return x + self.mlp(self.two(x))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(16_000, 384), nn.Embedding(256, 384)
            self.blocks = nn.ModuleList(Block(384) for _ in range(6))
            self.norm, self.head = nn.LayerNorm(384), nn.Linear(384, 16_000, bias=False)
            self.head.weight = self.words.weight

        def forward(self, x):
            x = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
            return self.head(self.norm(x))

    return GPT()


def torch_gpt_checkpointed():
    return torch_gpt(checkpointed=True)
