"""A forecast: windows of a series, early stopping and a rate that is reduced on a plateau."""

import keras
import numpy as np

keras.utils.set_random_seed(9)
series = np.sin(np.arange(200) / 7) + 0.1 * np.random.normal(size=200)
dataset = keras.utils.timeseries_dataset_from_array(
    series[:-10, None], series[10:], sequence_length=10, batch_size=16, shuffle=True, seed=1
)


def run_experiment(epochs):
    model = keras.Sequential(
        [keras.Input((10, 1)), keras.layers.LSTM(8, recurrent_dropout=0.1), keras.layers.Dense(1)]
    )
    model.compile(optimizer=keras.optimizers.RMSprop(1e-2), loss="mse")
    callbacks = [
        keras.callbacks.EarlyStopping("loss", patience=3),
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1),
    ]
    model.fit(dataset, epochs=epochs, callbacks=callbacks, verbose=2)
    return model


run_experiment(5).save_weights("forecast.weights.h5")
