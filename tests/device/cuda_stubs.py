"""Empty libraries in place of CUDA's, so that a CUDA build of torch loads on a machine without CUDA.

torch 2.9 for x86_64 is only published as a CUDA build. Its loader wants 3.7 GB of libraries that nothing here calls:
each stub defines the names that torch's libraries import from the real one. Its functions only say that there is no
device, which is what torch asks when it loads.

    python -m tests.device.cuda_stubs FOLDER     (site-packages/torch/lib)
"""

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

NO_DEVICE = 100
"""cudaErrorNoDevice, and CUDA_ERROR_NO_DEVICE."""
CUDA_NAME = re.compile(r"cu|nccl|nv")


def output_of(*command: str) -> str:
    """What `command` prints. Raises CalledProcessError."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(library: Path, kinds: str) -> set[str]:
    """Names in the dynamic table of `library`, as name or name@version, whose type (see nm) is one of `kinds`."""
    return set(re.findall(rf"^[0-9a-f ]* [{kinds}] (\S+)$", output_of("nm", "-D", str(library)), re.M))


def stub_source(names: set[str]) -> str:
    """C that defines `names`."""
    return "".join(f"long {name}(void) {{ return {NO_DEVICE}; }}\n" for name in sorted(names))


def main(folder: Path) -> None:
    """Write a stub into `folder` for every library that the ones there need and the system lacks."""
    known = {path.name for path in folder.iterdir()} | set(re.findall(r"^\s+(\S+) ", output_of("ldconfig", "-p"), re.M))
    imported: set[str] = set()
    defined: set[str] = set()
    missing: dict[str, str] = {}
    for library in sorted(folder.glob("*.so*")):
        defined |= {name.split("@")[0] for name in symbols(library, "A-TV-Za-z")}
        dynamic = output_of("readelf", "--dynamic", "--version-info", "--wide", str(library))
        lacking = set(re.findall(r"\(NEEDED\).*\[(\S+)\]", dynamic)) - known
        if lacking:
            # Weak ones (w) may stay undefined.
            imported |= symbols(library, "U")
        for name in lacking:
            missing.setdefault(name, "")
        for name, version in re.findall(r"File: (\S+) .*\n.*Name: (\S+) ", dynamic):
            if name not in known:
                missing[name] = version
    names: dict[str, set[str]] = defaultdict(set)
    for symbol in imported:
        name, _, version = symbol.partition("@")
        names[version].add(name)
    # A name without a version may come from any library of the process: the first stub has all of CUDA's.
    unversioned = {name for name in names.pop("", set()) - defined if CUDA_NAME.match(name)}
    with tempfile.TemporaryDirectory() as temporary:
        source, script = Path(temporary, "stub.c"), Path(temporary, "versions")
        for index, (library, version) in enumerate(sorted(missing.items())):
            own = names[version] if version else set()
            source.write_text(stub_source(own | (unversioned if index == 0 else set())))
            script.write_text(f"{version} {{ global: *; }};" if version else "")
            versions = [f"-Wl,--version-script={script}"] if version else []
            target = folder / library
            command = ["gcc", "-shared", "-w", f"-Wl,-soname={library}", *versions, "-o", str(target), str(source)]
            subprocess.run(command, check=True)
    print(f"{len(missing)} stubs in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
