//! Functions in an object file, for a linker to put beside the runtime.
//!
//! The file has one symbol for the outside, an [`Artefact`]: where the description of launches is, and the table of functions
//! that it counts. What it needs from outside are tile primitives, by the names of their instruction set.

use super::jit::{Backing, Functions, flags};
use super::{Compiler, Products};
use cranelift::codegen::isa::{Builder, OwnedTargetIsa};
use cranelift::module::{DataDescription, DataId, Linkage, Module, default_libcall_names};
use cranelift::object::{ObjectBuilder, ObjectModule};
use cranelift::prelude::*;
use kernfusion_codegen::CodegenError;
use kernfusion_runtime::artefact::{self, Artefact};
use kernfusion_runtime::isa::Isa;
use kernfusion_runtime::math::Tiles;
use std::collections::HashMap;

/// What Cranelift may use where only AVX2 is asked for.
const WITH_AVX2: [&str; 12] = [
    "has_cmpxchg16b",
    "has_sse3",
    "has_ssse3",
    "has_sse41",
    "has_sse42",
    "has_popcnt",
    "has_avx",
    "has_avx2",
    "has_fma",
    "has_bmi1",
    "has_bmi2",
    "has_lzcnt",
];

impl Compiler {
    /// A compiler into an object file, for processors that have `isa`; for AVX-512, for the processor that it runs on.
    pub(crate) fn for_object(isa: Isa, name: &str) -> Result<Self, CodegenError> {
        let target = target(isa)?;
        let builder = ObjectBuilder::new(target, name, default_libcall_names()).map_err(failed)?;
        let module = Box::new(ObjectModule::new(builder));
        let functions = Functions::in_module(Backing::File(module, Tiles::prefix(isa)), isa);
        Ok(Compiler { functions, isa, products: Products::default(), programs: HashMap::new() })
    }

    /// What code takes of the processor, in the words of `is_x86_feature_detected!`.
    pub(crate) fn features(&self) -> Vec<String> {
        let Backing::File(module, _) = &self.functions.module else { return vec![] };
        let flags = module.isa().isa_flags();
        let used = flags.into_iter().filter(|flag| flag.as_bool() == Some(true));
        let names = used.filter_map(|flag| flag.name.strip_prefix("has_"));
        let rust = |name: &str| name.replace("sse4", "sse4.").replace("avx_vnni", "avxvnni");
        names.map(rust).collect()
    }

    /// The object file, whose symbol is called [`artefact::symbol`].
    pub(crate) fn into_object(self, name: &str, description: Vec<u8>) -> Result<Vec<u8>, CodegenError> {
        let Functions { module: Backing::File(mut module, _), defined, .. } = self.functions else {
            unreachable!("made for an object file");
        };
        let length = description.len() as u64;
        let text = data(&mut module, "description", description, |_, _| {})?;
        let table = data(&mut module, "functions", vec![0; 8 * defined.len()], |module, table| {
            for (at, &function) in defined.iter().enumerate() {
                let function = module.declare_func_in_data(function, table);
                table.write_function_addr(8 * at as u32, function);
            }
        })?;
        let head =
            [artefact::MAGIC, [0; 8], length.to_le_bytes(), [0; 8], (defined.len() as u64).to_le_bytes()];
        assert_eq!(size_of_val(&head), size_of::<Artefact>(), "one layout");
        let symbol = artefact::symbol(name);
        data(&mut module, &symbol, head.concat(), |module, head| {
            for (offset, target) in [(8, text), (24, table)] {
                let target = module.declare_data_in_data(target, head);
                head.write_data_addr(offset, target, 0);
            }
        })?;
        module.finish().emit().map_err(failed)
    }
}

/// Read-only data of this name, which the linker sees if it begins as artefacts do, and the addresses in it.
fn data(
    module: &mut ObjectModule,
    name: &str,
    bytes: Vec<u8>,
    addresses: impl FnOnce(&mut ObjectModule, &mut DataDescription),
) -> Result<DataId, CodegenError> {
    let linkage = if name.starts_with(artefact::PREFIX) { Linkage::Export } else { Linkage::Local };
    let id = module.declare_data(name, linkage, false, false).map_err(failed)?;
    let mut data = DataDescription::new();
    data.define(bytes.into_boxed_slice());
    data.set_align(8);
    addresses(module, &mut data);
    module.define_data(id, &data).map_err(failed)?;
    Ok(id)
}

fn target(isa: Isa) -> Result<OwnedTargetIsa, CodegenError> {
    let host = || cranelift::native::builder().map_err(failed);
    let builder = match isa {
        Isa::Avx512 { .. } => host()?,
        Isa::Avx2 => with(&WITH_AVX2, &host()?)?,
        Isa::Portable => with(&[], &host()?)?,
    };
    builder.finish(flags(true)).map_err(failed)
}

/// The host's kind of processor with no more than these features.
fn with(features: &[&str], host: &Builder) -> Result<Builder, CodegenError> {
    let mut builder = cranelift::codegen::isa::lookup(host.triple().clone()).map_err(failed)?;
    for feature in features {
        builder.enable(feature).map_err(failed)?;
    }
    Ok(builder)
}

fn failed(error: impl std::fmt::Display) -> CodegenError {
    CodegenError::Backend { kernel: String::new(), message: error.to_string() }
}
