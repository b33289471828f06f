"""Cross-validation: a new model and a fit for each fold, in a function."""

import keras
import numpy as np

keras.utils.set_random_seed(8)
data, targets = np.random.random((120, 6)), np.random.random((120, 1))


def build_model():
    hidden = [keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.1)]
    model = keras.Sequential([keras.Input((6,)), *hidden, keras.layers.Dense(1)])
    model.compile(optimizer="rmsprop", loss="mse", metrics=["mae"])
    return model


k, scores = 3, []
for i in range(k):
    print(f"processing fold #{i}")
    held = np.arange(120) // 40 == i
    model = build_model()
    history = model.fit(
        data[~held], targets[~held], validation_data=(data[held], targets[held]),
        epochs=4, batch_size=8, verbose=0,
    )  # fmt: skip
    scores.append(history.history["val_mae"][-1])
print(f"mean {np.mean(scores):.4f}")
model.save_weights("fold.weights.h5")
