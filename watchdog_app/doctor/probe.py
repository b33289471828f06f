# Runs in the user's own interpreter, Python 3.7 and newer, and imports nothing of ours:
# python probe.py versions|tensorflow|torch|jax [use]
"""
What an environment holds, and whether its frameworks reach the GPU.

Prints lines that begin with MARK, JSON behind it; all else on standard output is others' noise.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from typing import Any

MARK = "@watchdog-doctor "
_WANTED = re.compile(
    r"(tensorflow|tf[-_]nightly|intel[-_]tensorflow|keras|tf[-_]keras|torch|jax|numpy|nvidia|"
    r"triton|cupy|onnxruntime)",
    re.IGNORECASE,
)
_CONDA = re.compile(r"(tensorflow|pytorch|torch|jax|cuda|cudnn|numpy)")


def say(**values: object) -> None:
    """One line, at once."""
    sys.stdout.write("\n" + MARK + json.dumps(values, default=str) + "\n")
    sys.stdout.flush()


def versions() -> None:
    """What is installed, read from folder names: nothing is imported."""
    found: dict[str, str] = {}
    build: dict[str, Any] | None = None
    torch_cuda: dict[str, Any] | None = None
    libraries: list[str] = []
    packages: dict[str, str] = {}  # to the folder that each lies in
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            known = re.match(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info$", name)
            if known and _WANTED.match(known.group(1)):
                key = known.group(1).replace("_", "-").lower()
                found.setdefault(key, known.group(2))  # the first on the path is imported
        if build is None and "tensorflow" in names:
            build = _tensorflow_build(os.path.join(folder, "tensorflow/python/platform"))
        if torch_cuda is None and "torch" in names:
            torch_cuda = _torch_cuda(os.path.join(folder, "torch/version.py"))
        for name in ("keras", "tf_keras", "tensorflow", "torch"):
            if name in names:
                packages.setdefault(name, folder or os.getcwd())
        if "nvidia" in names:
            libraries += _libraries(os.path.join(folder, "nvidia"))
    meta = os.path.join(sys.prefix, "conda-meta")
    conda = []
    if os.path.isdir(meta):
        for name in sorted(os.listdir(meta)):
            if _CONDA.search(name) and name.endswith(".json"):
                conda.append(name[:-5])
    shadows = []
    for name in ("tensorflow", "torch", "keras", "numpy", "jax", "random", "types", "logging"):
        if os.path.isfile(name + ".py"):
            shadows.append(name + ".py")
    say(
        result={
            "python": ".".join(map(str, sys.version_info[:3])),
            "executable": sys.executable,
            "prefix": sys.prefix,
            "bits": 64 if sys.maxsize > 2**32 else 32,
            "dists": found,
            "conda": conda,
            "packages": packages,
            "tensorflow_build": build,
            "torch_cuda": torch_cuda,
            "nvidia_libraries": sorted(set(libraries)),
            "shadows": shadows,
        }
    )


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read(100000)
    except (OSError, ValueError):
        return ""


def _tensorflow_build(folder: str) -> dict[str, Any] | None:
    text = _text(os.path.join(folder, "build_info.py"))
    if not text:
        return None
    found: dict[str, Any] = {}
    for key in ("cuda_version", "cudnn_version"):
        value = re.search(rf"'{key}', *'([\d.]+)'", text)
        found[key] = value.group(1) if value else None
    found["is_cuda_build"] = "'is_cuda_build', True" in text
    found["is_rocm_build"] = "'is_rocm_build', True" in text
    return found


def _torch_cuda(path: str) -> dict[str, Any]:
    value = re.search(r"^cuda\b[^=\n]*= *'([\d.]+)'", _text(path), re.MULTILINE)
    hip = re.search(r"^hip\b[^=\n]*= *'([\d.\w-]+)'", _text(path), re.MULTILINE)
    return {"cuda": value.group(1) if value else None, "hip": hip.group(1) if hip else None}


def _libraries(folder: str) -> list[str]:
    found = []
    for part in sorted(os.listdir(folder)):
        library = os.path.join(folder, part, "lib")
        if os.path.isdir(library):
            found += [name for name in os.listdir(library) if ".so" in name]
    return found


def tensorflow(use: bool) -> None:
    """TensorFlow's own account of itself."""
    say(step="import tensorflow")
    import tensorflow as tf

    found: dict[str, Any] = {"version": tf.__version__}
    try:
        info = tf.sysconfig.get_build_info()
        found["build"] = {key: str(info.get(key)) for key in info}
        found["cuda"] = info.get("cuda_version")
        found["cudnn"] = info.get("cudnn_version")
    except Exception as error:
        found["build_error"] = repr(error)
    found["built_with_cuda"] = bool(tf.test.is_built_with_cuda())
    say(result=found, step="list the GPUs")
    gpus = tf.config.list_physical_devices("GPU")
    found["gpus"] = [gpu.name for gpu in gpus]
    try:
        details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
        found["capabilities"] = [list(one.get("compute_capability") or ()) for one in details]
    except Exception as error:
        found["details_error"] = repr(error)
    say(result=found, step="compute on the GPU")
    if gpus and use:
        try:
            with tf.device("/GPU:0"):
                ones = tf.ones([64, 64])
                product = tf.linalg.matmul(ones, ones)
                value = float(product[0, 0])
            found["device"] = product.device
            found["product"] = value
            say(result=found, step="compute with cuDNN on the GPU")
            with tf.device("/GPU:0"):
                image = tf.nn.conv2d(tf.ones([1, 8, 8, 1]), tf.ones([3, 3, 1, 1]), 1, "SAME")
                found["convolution"] = float(image[0, 4, 4, 0])
        except Exception as error:
            found["use_error"] = f"{type(error).__name__}: {error}"
    say(result=found, step=None)


def torch(use: bool) -> None:
    """PyTorch's own account of itself."""
    import warnings

    say(step="import torch")
    pt: Any = importlib.import_module("torch")

    found: dict[str, Any] = {
        "version": pt.__version__,
        "cuda": pt.version.cuda,
        "hip": pt.version.hip,
    }
    say(result=found, step="load cuDNN")
    try:
        found["cudnn"] = pt.backends.cudnn.version()
    except Exception as error:
        found["cudnn_error"] = f"{type(error).__name__}: {error}"
    say(result=found, step="list the GPUs")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found["available"] = bool(pt.cuda.is_available())
        found["count"] = pt.cuda.device_count()
        if found["available"]:
            try:
                every = range(found["count"])
                found["capabilities"] = [list(pt.cuda.get_device_capability(n)) for n in every]
                found["arch_list"] = list(pt.cuda.get_arch_list())
            except Exception as error:
                found["details_error"] = f"{type(error).__name__}: {error}"
    found["warnings"] = [str(one.message)[:1000] for one in caught][:5]
    say(result=found, step="compute on the GPU")
    if found["available"] and use:
        try:
            ones = pt.ones(64, 64, device="cuda")
            product = ones @ ones
            found["device"] = str(product.device)
            found["product"] = float(product[0, 0].item())
            say(result=found, step="compute with cuDNN on the GPU")
            image = pt.nn.functional.conv2d(
                pt.ones(1, 1, 8, 8, device="cuda"), pt.ones(1, 1, 3, 3, device="cuda"), padding=1
            )
            found["convolution"] = float(image[0, 0, 4, 4].item())
        except Exception as error:
            found["use_error"] = f"{type(error).__name__}: {error}"
    say(result=found, step=None)


def jax(use: bool) -> None:
    """JAX's own account of itself."""
    say(step="import jax")
    jx: Any = importlib.import_module("jax")

    found: dict[str, Any] = {"version": jx.__version__}
    say(result=found, step="list the GPUs")
    found["devices"] = [str(one) for one in jx.devices()]
    found["platforms"] = sorted({one.platform for one in jx.devices()})
    say(result=found, step="compute on the GPU")
    if use and "gpu" in found["platforms"]:
        try:
            ones = jx.numpy.ones((64, 64))
            found["product"] = float((ones @ ones)[0, 0])
        except Exception as error:
            found["use_error"] = f"{type(error).__name__}: {error}"
    say(result=found, step=None)


def main(words: list[str]) -> None:
    """Answer one question and end, without what frameworks do at their end: that can hang."""
    # The folder of this file must not hide modules of the same names from the user's.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    what, use = words[0], "use" in words[1:]
    try:
        if what == "versions":
            versions()
        elif what == "tensorflow":
            tensorflow(use)
        elif what == "torch":
            torch(use)
        elif what == "jax":
            jax(use)
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}")
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
