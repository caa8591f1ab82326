//! Cranelift's JIT module: functions are built one by one, made executable together, and freed together.

use super::code::Code;
use super::wide::Wide;
use crate::CodegenError;
use crate::cpu::isa::Isa;
use crate::cpu::tiles::Tiles;
use cranelift::codegen::Context;
use cranelift::jit::{JITBuilder, JITModule};
use cranelift::module::{FuncId, Module, default_libcall_names};
use cranelift::prelude::*;

/// Functions under construction.
pub(super) struct Functions {
    module: JITModule,
    wide: Option<Wide>,
    context: Context,
    builder: FunctionBuilderContext,
    defined: Vec<FuncId>,
    keep_code: bool,
    texts: Vec<Text>,
}

/// A function as text, where it was asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Text {
    /// Cranelift's IR.
    pub(crate) clif: String,
    /// Machine code, disassembled.
    pub(crate) assembly: String,
}

/// Executable functions.
pub(crate) struct Machine {
    module: Option<JITModule>,
    functions: Vec<*const u8>,
    texts: Vec<Text>,
}

impl Functions {
    pub(super) fn new(isa: Isa, keep_code: bool) -> Result<Self, CodegenError> {
        let mut flags = settings::builder();
        let debug = if cfg!(debug_assertions) { "true" } else { "false" };
        let values = [
            ("opt_level", "speed"),
            ("is_pic", "false"),
            ("use_colocated_libcalls", "false"),
            ("enable_verifier", debug),
            // Frames are a few kilobytes at most, far less than a guard page's reach.
            ("enable_probestack", "false"),
        ];
        for (name, value) in values {
            flags.set(name, value).expect("Cranelift knows the flag");
        }
        let failed = |message: String| CodegenError::Backend { kernel: String::new(), message };
        let target = cranelift::native::builder().map_err(|message| failed(message.into()))?;
        let target = target.finish(settings::Flags::new(flags)).map_err(|error| failed(error.to_string()))?;
        let mut builder = JITBuilder::with_isa(target, default_libcall_names());
        builder.symbols(Tiles::of(isa).symbols().iter().map(|symbol| (symbol.name, symbol.address)));
        let module = JITModule::new(builder);
        let (context, builder) = (module.make_context(), FunctionBuilderContext::new());
        let wide = Wide::is_there(isa).then(Wide::default);
        Ok(Functions { module, wide, context, builder, defined: vec![], keep_code, texts: vec![] })
    }

    /// Defines a function by what `build` emits after its entry, and returns its number.
    pub(super) fn define(
        &mut self,
        name: &str,
        parameters: &[Type],
        build: impl for<'f, 'm> FnOnce(Code<'f, 'm>, &[Value]) -> Code<'f, 'm>,
    ) -> Result<usize, CodegenError> {
        let failed = |message: String| CodegenError::Backend { kernel: name.into(), message };
        self.module.clear_context(&mut self.context);
        self.context.set_disasm(self.keep_code);
        self.context.func.signature = self.module.make_signature();
        self.context.func.signature.params = parameters.iter().map(|&ty| AbiParam::new(ty)).collect();
        let mut b = FunctionBuilder::new(&mut self.context.func, &mut self.builder);
        let entry = b.create_block();
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        let parameters = b.block_params(entry).to_vec();
        build(Code::new(b, &mut self.module, self.wide.as_mut()), &parameters).finish();
        let signature = &self.context.func.signature;
        let id = self.module.declare_anonymous_function(signature).map_err(|e| failed(e.to_string()))?;
        self.module.define_function(id, &mut self.context).map_err(|e| failed(format!("{e:?}")))?;
        self.texts.push(if self.keep_code { self.text() } else { Text::default() });
        self.defined.push(id);
        Ok(self.defined.len() - 1)
    }

    /// The function just compiled, as optimised and as machine code, with the names of what it calls.
    fn text(&self) -> Text {
        let function = &self.context.func;
        let compiled = self.context.compiled_code().expect("just compiled");
        let mut text = Text {
            clif: function.display().to_string(),
            assembly: compiled.vcode.clone().unwrap_or_default(),
        };
        for (reference, external) in function.params.user_named_funcs().iter().rev() {
            let called = self.module.declarations().get_function_decl(FuncId::from_u32(external.index));
            let name = called.linkage_name(FuncId::from_u32(external.index)).into_owned();
            text.clif = text.clif.replace(&format!("= u0:{} ", external.index), &format!("= %{name} "));
            text.assembly = text.assembly.replace(&format!("{reference}+0"), &name);
            if let Some(wide) =
                self.wide.as_ref().and_then(|wide| wide.text(FuncId::from_u32(external.index)))
            {
                text.assembly += &format!("{name}:\n{wide}");
            }
        }
        text
    }

    /// Makes all functions executable.
    pub(super) fn finish(mut self) -> Result<Machine, CodegenError> {
        let failed = |message: String| CodegenError::Backend { kernel: String::new(), message };
        self.module.finalize_definitions().map_err(|error| failed(error.to_string()))?;
        let functions = self.defined.iter().map(|&id| self.module.get_finalized_function(id)).collect();
        Ok(Machine { module: Some(self.module), functions, texts: self.texts })
    }
}

// SAFETY: machine code is immutable once finished; the module is only kept to be freed.
unsafe impl Send for Machine {}
// SAFETY: as above.
unsafe impl Sync for Machine {}

impl Machine {
    /// The address of a function.
    pub(crate) fn address(&self, function: usize) -> *const u8 {
        self.functions[function]
    }

    /// A function as text; empty unless code is kept.
    pub(crate) fn text(&self, function: usize) -> &Text {
        &self.texts[function]
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let module = self.module.take().expect("dropped once");
        // SAFETY: whoever calls a function borrows this value, so nothing runs any more.
        unsafe { module.free_memory() };
    }
}
