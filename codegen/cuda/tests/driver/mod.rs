//! A simulated CUDA driver, so that the code in front of the driver runs in tests without a GPU: `libcuda`, `libnvrtc`, `libcublasLt` and
//! `libnccl`, built from the C++ beside this file. It simulates the driver's interface (memory, streams, events, graphs), not a GPU;
//! kernels run on the emulator. `driver.cpp` says what can be set.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The sources of each library, the first of which is compiled. The last two call the first.
const LIBRARIES: [(&str, &[&str]); 4] = [
    ("libcuda.so", &["driver.cpp", "simulator.hpp", "kernels.hpp"]),
    ("libnvrtc.so", &["nvrtc.cpp"]),
    ("libcublasLt.so", &["cublaslt.cpp"]),
    ("libnccl.so.2", &["nccl.cpp"]),
];

/// The folder of the libraries, built if they are not there; `None`, with a word to say so, without a C++ compiler.
pub(crate) fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".into());
        if Command::new(&compiler).arg("--version").output().is_err() {
            println!("skipped: there is no C++ compiler (g++, or what CXX names)");
            return None;
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("simulated-driver");
        std::fs::create_dir_all(folder.join("kernels")).expect("a folder of the build");
        LIBRARIES.iter().for_each(|(name, sources)| library(&compiler, &folder, name, sources));
        Some(folder)
    };
    FOLDER.get_or_init(build).as_deref()
}

/// Compiles a library unless it is newer than its sources. It appears whole, as other tests may use it.
fn library(compiler: &str, folder: &Path, name: &str, sources: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The tests of the library and of the command build it, too.
    let packages = [root.to_path_buf(), root.join("codegen/cuda"), root.join("../codegen/cuda")];
    let package = packages.into_iter().find(|package| package.join("tests/driver").exists());
    let package = package.expect("the package of the CUDA back end");
    let here = package.join("tests/driver");
    let modified = |path: PathBuf| path.metadata().and_then(|data| data.modified()).ok();
    let newest = sources.iter().map(|source| modified(here.join(source))).max().expect("there are sources");
    let file = folder.join(name);
    if modified(file.clone()) > newest {
        return;
    }
    let text = |name: &str, path: PathBuf| format!("-D{name}=\"{}\"", path.display());
    let part = folder.join(format!("{name}.{}", std::process::id()));
    let output = Command::new(compiler)
        .args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"])
        .arg(format!("-Wl,-soname,{}", if name == "libnvrtc.so" { "libnvrtc.so.12" } else { name }))
        .arg(text("EMULATOR", package.join("src/headers/emulator.hpp")))
        .arg(text("KERNELS", folder.join("kernels")))
        .arg(here.join(sources[0]))
        .arg("-o")
        .arg(&part)
        .arg("-ldl")
        .args(matches!(name, "libcublasLt.so" | "libnccl.so.2").then(|| folder.join("libcuda.so")))
        .output()
        .expect("the compiler was there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(part, file).expect("a library in its place");
}
