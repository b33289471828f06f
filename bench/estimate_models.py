"""The models of bench/estimate.py: builders, inputs, and batch sizes."""

from __future__ import annotations

# (name of the builder, batch size, jit). HOLDOUT was added after the estimate was finished: see
# docs/measurements.md.
TUNED = (
    ("keras_dense", 512, False),
    ("keras_dense", 8192, False),
    ("keras_vgg", 32, False),
    ("keras_resnet50", 16, False),
    ("keras_mobilenet", 32, False),
    ("keras_unet", 8, False),
    ("keras_lstm", 256, False),
    ("keras_gru", 512, False),
    ("keras_transformer", 32, False),
    ("keras_embedding", 1024, False),
    ("keras_autoencoder", 64, False),
    ("keras_vgg", 32, True),
    ("keras_resnet50", 16, True),
    ("keras_transformer", 32, True),
    ("keras_dense", 8192, True),
    ("torch_dense", 512, False),
    ("torch_dense", 8192, False),
    ("torch_vgg", 32, False),
    ("torch_resnet", 16, False),
    ("torch_mobilenet", 32, False),
    ("torch_unet", 8, False),
    ("torch_lstm", 256, False),
    ("torch_transformer", 32, False),
    ("torch_attention_maps", 16, False),
    ("torch_embedding", 1024, False),
)


def keras_dense():
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((2048,)),
            *(layers.Dense(4096, activation="relu") for _ in range(3)),
            layers.Dense(1000, activation="softmax"),
        ]
    )


def keras_vgg():
    import keras

    layers = keras.layers
    model = keras.Sequential([layers.Input((112, 112, 3))])
    for filters, count in ((64, 2), (128, 2), (256, 3), (512, 3)):
        for _ in range(count):
            model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D())
    model.add(layers.Flatten())
    model.add(layers.Dense(1024, activation="relu"))
    model.add(layers.Dropout(0.5))
    model.add(layers.Dense(100, activation="softmax"))
    return model


def keras_resnet50():
    import keras

    return keras.applications.ResNet50(weights=None, input_shape=(160, 160, 3), classes=100)


def keras_mobilenet():
    import keras

    return keras.applications.MobileNetV2(weights=None, input_shape=(160, 160, 3), classes=100)


def keras_unet():
    import keras

    layers = keras.layers
    inputs = layers.Input((192, 192, 3))
    x, skips = inputs, []
    for filters in (32, 64, 128):
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same")(x)
            x = layers.BatchNormalization()(x)
            x = layers.ReLU()(x)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(256, 3, padding="same", activation="relu")(x)
    for filters in (128, 64, 32):
        x = layers.Conv2DTranspose(filters, 2, strides=2, padding="same")(x)
        x = layers.Concatenate()([x, skips.pop()])
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x))


def keras_lstm():
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((100, 64)),
            layers.LSTM(256, return_sequences=True),
            layers.LSTM(256),
            layers.Dense(10, activation="softmax"),
        ]
    )


def keras_gru():
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((80, 32)),
            layers.Bidirectional(layers.GRU(128, return_sequences=True)),
            layers.GlobalAveragePooling1D(),
            layers.Dense(10, activation="softmax"),
        ]
    )


def keras_transformer():
    import keras

    layers = keras.layers
    inputs = layers.Input((256,), dtype="int32")
    x = layers.Embedding(8000, 256)(inputs)
    for _ in range(4):
        y = layers.MultiHeadAttention(8, 32, dropout=0.1)(x, x)
        x = layers.LayerNormalization()(x + y)
        y = layers.Dense(1024, activation="gelu")(x)
        y = layers.Dense(256)(y)
        y = layers.Dropout(0.1)(y)
        x = layers.LayerNormalization()(x + y)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


def keras_embedding():
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((50,), dtype="int32"),
            layers.Embedding(400_000, 128),
            layers.GlobalAveragePooling1D(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )


def keras_autoencoder():
    import keras

    layers = keras.layers
    inputs = layers.Input((128, 128, 3))
    x = inputs
    for filters in (32, 64, 128):
        x = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(x)
    for filters in (128, 64, 32):
        x = layers.Conv2DTranspose(filters, 3, strides=2, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Conv2D(3, 3, padding="same", activation="sigmoid")(x))


def torch_dense():
    from torch import nn

    return nn.Sequential(
        nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(),
        nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000),
    )  # fmt: skip


def torch_vgg():
    from torch import nn

    parts, before = [], 3
    for filters, count in ((64, 2), (128, 2), (256, 3), (512, 3)):
        for _ in range(count):
            parts += [nn.Conv2d(before, filters, 3, padding=1), nn.ReLU(inplace=True)]
            before = filters
        parts.append(nn.MaxPool2d(2))
    parts += [
        nn.Flatten(),
        nn.Linear(512 * 49, 1024),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(1024, 100),
    ]
    return nn.Sequential(*parts)


def _torch_block():
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before, width, stride):
            super().__init__()
            after = width * 4
            self.body = nn.Sequential(
                nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
                nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width),
                nn.ReLU(True), nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after),
            )  # fmt: skip
            self.short = None
            if stride != 1 or before != after:
                self.short = nn.Sequential(
                    nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
                )
            self.relu = nn.ReLU(True)

        def forward(self, x):
            return self.relu(self.body(x) + (x if self.short is None else self.short(x)))

    return Block


def torch_resnet():
    from torch import nn

    block = _torch_block()
    parts = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)]
    parts.append(nn.MaxPool2d(3, 2, 1))
    before = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(count):
            parts.append(block(before, width, stride if index == 0 else 1))
            before = width * 4
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 100)]
    return nn.Sequential(*parts)


def torch_mobilenet():
    from torch import nn

    parts, before = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6(True)], 32
    for after, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        parts += [
            nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False),
            nn.BatchNorm2d(before), nn.ReLU6(True),
            nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU6(True),
        ]  # fmt: skip
        before = after
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100)]
    return nn.Sequential(*parts)


def torch_unet():
    import torch
    from torch import nn

    def double(before, after):
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(True),
            nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(True),
        )  # fmt: skip

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.ModuleList([double(3, 32), double(32, 64), double(64, 128)])
            self.middle = double(128, 256)
            self.up = nn.ModuleList(
                [nn.ConvTranspose2d(w * 2, w, 2, stride=2) for w in (128, 64, 32)]
            )
            self.after = nn.ModuleList([double(w * 2, w) for w in (128, 64, 32)])
            self.pool, self.last = nn.MaxPool2d(2), nn.Conv2d(32, 1, 1)

        def forward(self, x):
            skips = []
            for part in self.down:
                x = part(x)
                skips.append(x)
                x = self.pool(x)
            x = self.middle(x)
            for up, after in zip(self.up, self.after, strict=True):
                x = after(torch.cat([up(x), skips.pop()], 1))
            return torch.sigmoid(self.last(x))

    return UNet()


def torch_lstm():
    from torch import nn

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(64, 256, num_layers=2, batch_first=True)
            self.last = nn.Linear(256, 10)

        def forward(self, x):
            return self.last(self.lstm(x)[0][:, -1])

    return Tagger()


def torch_transformer():
    from torch import nn

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(8000, 256)
            layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.last = nn.Linear(256, 10)

        def forward(self, x):
            return self.last(self.body(self.embedding(x)).mean(1))

    return Encoder()


def torch_attention_maps():
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out, self.norm = (
                nn.Linear(192, 576),
                nn.Linear(192, 192),
                nn.LayerNorm(192),
            )

        def forward(self, x):
            rows, length, _ = x.shape
            q, k, v = (
                part.view(rows, length, 6, 32).transpose(1, 2)
                for part in self.qkv(self.norm(x)).chunk(3, -1)
            )
            weights = torch.softmax(q @ k.transpose(-1, -2) / 32**0.5, -1)
            return x + self.out((weights @ v).transpose(1, 2).reshape(rows, length, 192))

    return nn.Sequential(*(Attention() for _ in range(4)), nn.Flatten(), nn.Linear(192 * 256, 10))


def torch_embedding():
    from torch import nn

    return nn.Sequential(
        nn.EmbeddingBag(400_000, 128), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )


# Shape of one example and, for integers, the number of different values.
INPUTS = {
    "keras_dense": ((2048,), None),
    "keras_vgg": ((112, 112, 3), None),
    "keras_resnet50": ((160, 160, 3), None),
    "keras_mobilenet": ((160, 160, 3), None),
    "keras_unet": ((192, 192, 3), None),
    "keras_lstm": ((100, 64), None),
    "keras_gru": ((80, 32), None),
    "keras_transformer": ((256,), 8000),
    "keras_embedding": ((50,), 400_000),
    "keras_autoencoder": ((128, 128, 3), None),
    "torch_dense": ((2048,), None),
    "torch_vgg": ((3, 112, 112), None),
    "torch_resnet": ((3, 160, 160), None),
    "torch_mobilenet": ((3, 160, 160), None),
    "torch_unet": ((3, 192, 192), None),
    "torch_lstm": ((100, 64), None),
    "torch_transformer": ((256,), 8000),
    "torch_attention_maps": ((256, 192), None),
    "torch_embedding": ((50,), 400_000),
}


def keras_tiny():
    import keras

    return keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(2, activation="softmax")])


def torch_tiny():
    from torch import nn

    return nn.Sequential(nn.Linear(8, 2))


INPUTS |= {"keras_tiny": ((8,), None), "torch_tiny": ((8,), None)}


# Not used during the development of the estimate.
HOLDOUT = (
    ("keras_densenet", 16, False),
    ("keras_efficientnet", 16, False),
    ("keras_decoder", 16, False),
    ("keras_stacked_gru", 128, False),
    ("keras_mlp_small", 16384, False),
    ("keras_xception", 8, True),
    ("torch_densenet", 32, False),
    ("torch_decoder", 8, False),
    ("torch_gru", 128, False),
    ("torch_autoencoder", 64, False),
)


def keras_densenet():
    import keras

    return keras.applications.DenseNet121(weights=None, input_shape=(128, 128, 3), classes=20)


def keras_efficientnet():
    import keras

    return keras.applications.EfficientNetB0(weights=None, input_shape=(160, 160, 3), classes=20)


def keras_xception():
    import keras

    return keras.applications.Xception(weights=None, input_shape=(128, 128, 3), classes=20)


def keras_decoder():
    import keras

    layers = keras.layers
    inputs = layers.Input((192,), dtype="int32")
    x = layers.Embedding(20_000, 384)(inputs)
    for _ in range(3):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(6, 64)(y, y, use_causal_mask=True)
        y = layers.Dense(1536, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(384)(y)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(50, activation="softmax")(x))


def keras_stacked_gru():
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((200, 40)),
            layers.GRU(256, return_sequences=True),
            layers.LSTM(128, return_sequences=True),
            layers.GRU(64),
            layers.Dense(5, activation="softmax"),
        ]
    )


def keras_mlp_small():
    import keras

    layers = keras.layers
    model = keras.Sequential([layers.Input((300,))])
    for _ in range(6):
        model.add(layers.Dense(512))
        model.add(layers.BatchNormalization())
        model.add(layers.Activation("relu"))
        model.add(layers.Dropout(0.3))
    model.add(layers.Dense(20, activation="softmax"))
    return model


def torch_densenet():
    import torch
    from torch import nn

    class Grow(nn.Module):
        def __init__(self, before):
            super().__init__()
            self.body = nn.Sequential(
                nn.BatchNorm2d(before),
                nn.ReLU(True),
                nn.Conv2d(before, 32, 3, padding=1, bias=False),
            )

        def forward(self, x):
            return torch.cat([x, self.body(x)], 1)

    parts = [nn.Conv2d(3, 64, 3, 2, 1), *(Grow(64 + 32 * at) for at in range(6)), nn.AvgPool2d(2)]
    parts += [Grow(256 + 32 * at) for at in range(8)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 20))


def torch_decoder():
    import torch
    from torch import nn

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(16_000, 512)
            layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, norm_first=True)
            self.body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
            self.last = nn.Linear(512, 100)

        def forward(self, x):
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
            return self.last(self.body(self.embedding(x), mask=mask).mean(1))

    assert torch
    return Decoder()


def torch_gru():
    from torch import nn

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(40, 256, num_layers=2, batch_first=True, bidirectional=True)
            self.last = nn.Linear(512, 10)

        def forward(self, x):
            return self.last(self.gru(x)[0][:, -1])

    return Tagger()


def torch_autoencoder():
    from torch import nn

    parts, before = [], 3
    for after in (32, 64, 128):
        parts += [nn.Conv2d(before, after, 3, 2, 1), nn.GELU()]
        before = after
    for after in (64, 32, 16):
        parts += [nn.ConvTranspose2d(before, after, 4, 2, 1), nn.GELU()]
        before = after
    return nn.Sequential(*parts, nn.Conv2d(16, 3, 3, padding=1), nn.Sigmoid())


INPUTS |= {
    "keras_densenet": ((128, 128, 3), None),
    "keras_efficientnet": ((160, 160, 3), None),
    "keras_xception": ((128, 128, 3), None),
    "keras_decoder": ((192,), 20_000),
    "keras_stacked_gru": ((200, 40), None),
    "keras_mlp_small": ((300,), None),
    "torch_densenet": ((3, 96, 96), None),
    "torch_decoder": ((256,), 16_000),
    "torch_gru": ((100, 40), None),
    "torch_autoencoder": ((3, 128, 128), None),
}
