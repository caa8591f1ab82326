//! Models as `torch.onnx.export` writes them do what PyTorch made of them, as their archives do: outputs, gradients and 50 steps of training.
//!
//! `benches/peers/onnx_fixtures.py` writes the files. Those of all architectures are too many to be kept here; a folder of them is
//! tested by `KERNFUSION_ONNX=DIR cargo test -p kernfusion-import onnx`.

use crate::architectures::{Fixture, check, check_outputs};
use crate::fixture;
use std::path::{Path, PathBuf};

fn of(folder: &Path, name: &str) -> Fixture {
    let imported = fixture::onnx(folder, name).unwrap_or_else(|error| panic!("{error}"));
    Fixture { imported, tensors: fixture::tensors_in(folder, name) }
}

macro_rules! files {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            let name = stringify!($name);
            check(name, &of(&fixture::folder(), name));
        }
    )*};
}

files! { linear gpt2 llama_sized mixtral mamba lstm resnet18 unet }

/// Each operator by itself, as the reference evaluator of ONNX computes it.
#[test]
fn operators() {
    check_outputs(&of(&fixture::folder(), "onnx_operators"));
}

/// Each operator of onnxruntime by itself, as onnxruntime computes it (`benches/peers/contributed_operators.py`).
#[test]
fn operators_of_onnxruntime() {
    check_outputs(&of(&fixture::folder(), "contributed"));
}

/// A folder that an environment variable names.
fn named_folder(variable: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(variable).map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: {variable} names no folder of files that onnx_fixtures.py wrote");
    }
    folder
}

#[test]
fn all_architectures_of_a_folder() {
    let Some(folder) = named_folder("KERNFUSION_ONNX") else { return };
    for name in fixture::onnx_names(&folder) {
        check(&name, &of(&folder, &name));
    }
}

/// Weights are computed with and merged there, so that parameters are other ones.
#[test]
fn outputs_of_a_folder_of_optimized_files() {
    let Some(folder) = named_folder("KERNFUSION_ONNX_OPTIMIZED") else { return };
    for name in fixture::onnx_names(&folder) {
        println!("{name}: outputs {:.0e}", check_outputs(&of(&folder, &name)));
    }
}

/// Matrices of whole groups, of which each is read by one product, are kept in the order of products, with a scale for each group; of others, the file's.
#[test]
fn half_bytes_are_kept_as_products_read_them() {
    let imported = of(&fixture::folder(), "contributed").imported;
    let of_type = |ty: &str| imported.states().iter().filter(|state| state.ty().to_string() == ty).count();
    assert_eq!((of_type("i8[3,6,16]"), of_type("f32[3,6]")), (5, 4));
    assert_eq!((of_type("i8[3,3,32]"), of_type("i8[3,3,8]"), of_type("i8[3,2,16]")), (0, 2, 1));
}
