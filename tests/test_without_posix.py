"""What the package does where Python lacks POSIX: it imports, and a run works (as on Windows)."""

import subprocess
import sys

WITHOUT_POSIX = """
import importlib, os, pkgutil, signal, sys, types
# Other packages look at the platform's name and not at its modules: they come first, as they are.
for name in ("torch", "peft", "transformers", "sklearn.datasets", "scipy.stats", "pyarrow.parquet",
             "matplotlib.pyplot", "typer", "rich.console", "safetensors.torch", "multiprocessing",
             "flwr.serverapp", "flwr.clientapp", "flwr.supercore", "fastapi", "uvicorn", "psutil",
             "subprocess", "tempfile", "socketserver", "shutil", "tarfile", "logging.handlers"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
for name in ("fcntl", "resource", "pwd", "grp", "termios", "posix_ipc", "syslog"):
    sys.modules[name] = None  # importing it fails
for name in ("fork", "getuid", "geteuid", "sched_getaffinity", "killpg", "mkfifo", "chown"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGALRM", "setitimer", "alarm"):
    if hasattr(signal, name):
        delattr(signal, name)
"""

IMPORT_ALL = """
import pfedseq
found = [m.name for m in pkgutil.walk_packages(pfedseq.__path__, "pfedseq.", onerror=print)]
for name in found:
    if "assets" in name or name.endswith(("__main__", "_mamba_kernel")) or ".app." in name:
        continue
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as missing:
        # an extra that is not installed may be missing; a module of POSIX may not
        assert missing.name.split(".")[0] in {"flwr", "fastapi", "uvicorn", "onnx", "grpc"}, missing
print(len(found))
"""

RUN = """
import pfedseq, pfedseq.files
windows = types.ModuleType("os")
windows.__dict__.update(vars(os), name="nt")
pfedseq.files.os = windows
config = pfedseq.make_config({
    "run": {"methods": ["fedavg"], "rounds": 1},
    "data": {"name": "digits", "num_clients": 2, "image_size": 32, "max_images_per_client": 12},
    "engine": {"device": "cpu"},
})
print(pfedseq.run(config, sys.argv[1]).methods["fedavg"].rounds)
"""


def call(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_POSIX + code, *arguments],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def test_every_module_imports():
    assert call(IMPORT_ALL) > 100


def test_a_run_works(tmp_path):
    assert call(RUN, str(tmp_path / "run")) == 1
    assert (tmp_path / "run" / "summary.json").exists()
