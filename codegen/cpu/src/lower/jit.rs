//! Functions are built one by one, in one of Cranelift's modules: for memory, where they are made executable together and freed
//! together, or for an object file ([`super::object`]).

use super::builder::Code;
use super::row::Row;
use super::schedule::RowSchedule;
use super::wide::{Vectors, Wide};
use cranelift::codegen::Context;
use cranelift::jit::{JITBuilder, JITModule};
use cranelift::module::{FuncId, Module, default_libcall_names};
#[cfg(feature = "object")]
use cranelift::object::ObjectModule;
use cranelift::prelude::*;
use kernfusion_codegen::CodegenError;
use kernfusion_runtime::functions;
use kernfusion_runtime::isa::Isa;
use kernfusion_runtime::math::Tiles;

/// Functions under construction.
pub(super) struct Functions {
    pub(super) module: Backing,
    wide: Option<Wide>,
    context: Context,
    builder: FunctionBuilderContext,
    pub(super) defined: Vec<FuncId>,
    keep_code: bool,
    texts: Vec<Text>,
}

/// Where functions go.
pub(super) enum Backing {
    /// Into memory, to be called.
    Memory(Box<JITModule>),
    /// Into an object file, where the names of tile primitives begin like this.
    #[cfg(feature = "object")]
    File(Box<ObjectModule>, &'static str),
}

impl Backing {
    fn module(&self) -> &dyn Module {
        match self {
            Backing::Memory(module) => &**module,
            #[cfg(feature = "object")]
            Backing::File(module, _) => &**module,
        }
    }

    fn module_mut(&mut self) -> (&mut dyn Module, &'static str) {
        match self {
            Backing::Memory(module) => (&mut **module, ""),
            #[cfg(feature = "object")]
            Backing::File(module, prefix) => (&mut **module, prefix),
        }
    }
}

/// A function as text, where it was asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Text {
    /// The stages of its rows.
    pub(crate) schedule: String,
    /// Cranelift's IR.
    pub(crate) clif: String,
    /// The loops over whole vectors that it calls, disassembled.
    pub(crate) lanes: String,
    /// Machine code, disassembled.
    pub(crate) assembly: String,
}

/// Executable functions.
pub(crate) struct Machine {
    module: Option<JITModule>,
    functions: functions::Functions,
    texts: Vec<Text>,
}

impl Functions {
    /// No functions yet, to be called in this process.
    pub(super) fn new(isa: Isa, keep_code: bool) -> Result<Self, CodegenError> {
        let failed = |message: String| CodegenError::Backend { kernel: String::new(), message };
        let target = cranelift::native::builder().map_err(|message| failed(message.into()))?;
        let target = target.finish(flags(false)).map_err(|error| failed(error.to_string()))?;
        let mut builder = JITBuilder::with_isa(target, default_libcall_names());
        builder.symbols(Tiles::of(isa).symbols().iter().map(|symbol| (symbol.name, symbol.address)));
        let module = Box::new(JITModule::new(builder));
        Ok(Functions { keep_code, ..Functions::in_module(Backing::Memory(module), isa) })
    }

    pub(super) fn in_module(module: Backing, isa: Isa) -> Self {
        let (context, builder) = (module.module().make_context(), FunctionBuilderContext::new());
        let wide = Vectors::of(isa).map(|_| Wide::default());
        Functions { module, wide, context, builder, defined: vec![], keep_code: false, texts: vec![] }
    }

    /// Defines a function on rows by what `build` emits after its entry, and returns its number.
    pub(super) fn define(
        &mut self,
        name: &str,
        (row, schedule): (&Row, &RowSchedule),
        parameters: &[Type],
        build: impl for<'f, 'm> FnOnce(Code<'f, 'm>, &[Value]) -> Code<'f, 'm>,
    ) -> Result<usize, CodegenError> {
        let failed = |message: String| CodegenError::Backend { kernel: name.into(), message };
        let (module, prefix) = self.module.module_mut();
        module.clear_context(&mut self.context);
        self.context.set_disasm(self.keep_code);
        self.context.func.signature = module.make_signature();
        self.context.func.signature.params = parameters.iter().map(|&ty| AbiParam::new(ty)).collect();
        let mut b = FunctionBuilder::new(&mut self.context.func, &mut self.builder);
        let entry = b.create_block();
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        let parameters = b.block_params(entry).to_vec();
        build(Code::new(b, module, prefix, self.wide.as_mut()), &parameters).finish();
        let signature = &self.context.func.signature;
        let (module, _) = self.module.module_mut();
        let id = module.declare_anonymous_function(signature).map_err(|e| failed(e.to_string()))?;
        module.define_function(id, &mut self.context).map_err(|e| failed(format!("{e:?}")))?;
        self.texts.push(match self.keep_code {
            true => Text { schedule: schedule.text(row), ..self.text() },
            false => Text::default(),
        });
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
            ..Text::default()
        };
        for (reference, external) in function.params.user_named_funcs().iter().rev() {
            let called =
                self.module.module().declarations().get_function_decl(FuncId::from_u32(external.index));
            let name = called.linkage_name(FuncId::from_u32(external.index)).into_owned();
            text.clif = text.clif.replace(&format!("= u0:{} ", external.index), &format!("= %{name} "));
            text.assembly = text.assembly.replace(&format!("{reference}+0"), &name);
            if let Some(wide) =
                self.wide.as_ref().and_then(|wide| wide.text(FuncId::from_u32(external.index)))
            {
                text.lanes += &format!("{name}:\n{wide}");
            }
        }
        text.assembly += &text.lanes;
        text
    }

    /// Makes all functions executable.
    #[cfg_attr(
        not(feature = "object"),
        expect(clippy::infallible_destructuring_match, reason = "there is another one with the feature")
    )]
    pub(super) fn finish(self) -> Result<Machine, CodegenError> {
        let failed = |message: String| CodegenError::Backend { kernel: String::new(), message };
        let mut module = match self.module {
            Backing::Memory(module) => module,
            #[cfg(feature = "object")]
            Backing::File(..) => return Err(failed("an object file does not run here".into())),
        };
        module.finalize_definitions().map_err(|error| failed(error.to_string()))?;
        let functions = self.defined.iter().map(|&id| module.get_finalized_function(id)).collect();
        let functions = functions::Functions::new(functions);
        Ok(Machine { module: Some(*module), functions, texts: self.texts })
    }
}

/// How functions are compiled; `is_pic` if a linker is to place them.
pub(super) fn flags(is_pic: bool) -> settings::Flags {
    let mut flags = settings::builder();
    let name = |value: bool| if value { "true" } else { "false" };
    let values = [
        ("opt_level", "speed"),
        ("is_pic", name(is_pic)),
        ("use_colocated_libcalls", "false"),
        ("enable_verifier", name(cfg!(debug_assertions))),
        // Frames are a few kilobytes at most, far less than a guard page's reach.
        ("enable_probestack", "false"),
    ];
    for (name, value) in values {
        flags.set(name, value).expect("Cranelift knows the flag");
    }
    settings::Flags::new(flags)
}

// SAFETY: machine code is immutable once finished; the module is only kept to be freed.
unsafe impl Send for Machine {}
// SAFETY: as above.
unsafe impl Sync for Machine {}

impl Machine {
    /// The addresses of all functions.
    pub(crate) fn functions(&self) -> &functions::Functions {
        &self.functions
    }

    /// A function as text; empty unless code is kept.
    pub(crate) fn text(&self, function: usize) -> &Text {
        &self.texts[function]
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let module = self.module.take().expect("dropped once");
        // SAFETY: calling a function borrows this value, so nothing runs any more.
        unsafe { module.free_memory() };
    }
}
