//! Kernels of a plan as work, loops with that of their bodies.

use super::collective::{ExchangeCode, Exchanging};
use super::lower::{Compiler, Machine, Text};
use super::plan::share_memory;
use kernfusion_codegen::{CodegenError, Temporaries};
use kernfusion_ir::kernel::{BufferId, BufferOffset, Form, Kernel, Loop, Place, Plan, Transfer};
use kernfusion_runtime::gemm::Workspaces;
use kernfusion_runtime::launch::{KernelProgram, Launcher, Pointers};
use std::sync::Arc;

/// What a kernel does.
pub(super) enum KernelCode {
    /// A program over these buffers.
    Program(Arc<KernelProgram>, Vec<usize>),
    /// The kernels of a body, over and over.
    Loop(LoopCode),
    /// An exchange between ranks.
    Exchange(ExchangeCode),
}

/// What a loop does.
pub(super) struct LoopCode {
    /// The body.
    kernels: Vec<KernelCode>,
    /// For each of them that multiplies with a matrix that is the same in every iteration, the memory where this stays packed.
    kept: Vec<Option<Workspaces>>,
    /// Where the body's buffers are at the moment.
    inner: Pointers,
}

impl LoopCode {
    fn new(repeated: &Loop, kernels: Vec<KernelCode>) -> Self {
        let is_constant =
            |slot: usize| repeated.constants.iter().any(|window| usize::from(window.inner) == slot);
        let keeps = |work: &KernelCode| match work {
            KernelCode::Program(program, slots) => {
                let factor = program.lone_product().and_then(|product| product.second_factor());
                factor.is_some_and(|slot| is_constant(slots[slot]))
            }
            KernelCode::Loop(_) | KernelCode::Exchange(_) => false,
        };
        let kept = kernels.iter().map(|work| keeps(work).then(Workspaces::keeping)).collect();
        LoopCode { kernels, kept, inner: Pointers::new(repeated.graph().buffers.len()) }
    }

    /// Runs all iterations.
    ///
    /// # Safety
    /// `outer` has memory for each buffer that the loop touches.
    unsafe fn run(
        &mut self,
        repeated: &Loop,
        launcher: &mut Launcher,
        machine: &Machine,
        outer: &Pointers,
    ) -> Result<(), CodegenError> {
        let LoopCode { kernels, kept, inner } = self;
        kept.iter_mut().flatten().for_each(|own| own.forget(launcher.pool().threads()));
        let plan = &repeated.body;
        let at = |spot: BufferOffset| outer.get(spot.buffer).wrapping_add(spot.offset);
        let copy = |transfer: Transfer| {
            let Transfer { from, to, bytes } = transfer;
            // SAFETY: both spots lie in buffers of that size, and what is carried has two places that take turns.
            unsafe { at(to).copy_from_nonoverlapping(at(from), bytes) };
        };
        let buffers = || (0..plan.places.len() as u32).map(BufferId);
        for buffer in buffers() {
            if let (Place::Arena { offset }, Some(scratch)) = (plan.place(buffer), repeated.scratch) {
                inner.set(buffer, outer.get(scratch).wrapping_add(offset));
            }
        }
        for iteration in 0..repeated.iterations {
            let iteration = repeated.iteration(iteration);
            iteration.places.iter().for_each(|&(buffer, spot)| inner.set(buffer, at(spot)));
            for buffer in buffers() {
                if let Place::Alias(_) = plan.place(buffer) {
                    inner.set(buffer, inner.get(plan.memory_of(buffer)));
                }
            }
            for ((kernel, work), own) in plan.graph.kernels.iter().zip(&mut *kernels).zip(&*kept) {
                // SAFETY: every buffer of the body has memory: in the scratch, or where the iteration has it. Nothing writes a constant.
                unsafe { work.run_with(own.as_ref(), kernel, launcher, machine, inner)? };
            }
            iteration.copies.into_iter().for_each(copy);
        }
        repeated.copies_at_the_end().into_iter().for_each(copy);
        Ok(())
    }
}

impl KernelCode {
    /// Compiles the kernels of a plan.
    pub(super) fn compile(
        plan: &Plan,
        temporaries: Temporaries,
        exchanging: Exchanging<'_>,
        compiler: &mut Compiler,
    ) -> Result<Vec<KernelCode>, CodegenError> {
        let work = |kernel: &Kernel| match &kernel.form {
            Form::Loop(repeated) => {
                let kernels = KernelCode::compile(&repeated.body, Temporaries::Arena, exchanging, compiler)?;
                Ok(KernelCode::Loop(LoopCode::new(repeated, kernels)))
            }
            Form::Collective(call) => {
                Ok(KernelCode::Exchange(ExchangeCode::new(&plan.graph, kernel, *call, exchanging)?))
            }
            Form::Map | Form::Reduce | Form::Contraction(_) => {
                let shares = |a: BufferId, b: BufferId| share_memory(plan, temporaries, a, b);
                let (program, slots) = compiler.kernel(&plan.graph, kernel, shares)?;
                Ok(KernelCode::Program(program, slots.into_iter().map(usize::from).collect()))
            }
        };
        plan.graph.kernels.iter().map(work).collect()
    }

    /// Every program.
    pub(super) fn programs(kernels: &[KernelCode]) -> Vec<&KernelProgram> {
        fn of(work: &KernelCode) -> Vec<&KernelProgram> {
            match work {
                KernelCode::Program(program, _) => vec![program],
                KernelCode::Loop(code) => KernelCode::programs(&code.kernels),
                KernelCode::Exchange(_) => vec![],
            }
        }
        kernels.iter().flat_map(of).collect()
    }

    /// Runs the work of a kernel.
    ///
    /// # Safety
    /// `pointers` has memory for each buffer that the kernel touches.
    pub(super) unsafe fn run(
        &mut self,
        kernel: &Kernel,
        launcher: &mut Launcher,
        machine: &Machine,
        pointers: &Pointers,
    ) -> Result<(), CodegenError> {
        // SAFETY: the caller's contract.
        unsafe { self.run_with(None, kernel, launcher, machine, pointers) }
    }

    /// As [`run`](Self::run), with workspaces of its own.
    ///
    /// # Safety
    /// As there; the workspaces have forgotten a factor that is another one by now.
    unsafe fn run_with(
        &mut self,
        own: Option<&Workspaces>,
        kernel: &Kernel,
        launcher: &mut Launcher,
        machine: &Machine,
        pointers: &Pointers,
    ) -> Result<(), CodegenError> {
        match self {
            // SAFETY: the caller's contract.
            KernelCode::Program(program, slots) => unsafe {
                Ok(launcher.run(program, machine.functions(), slots, pointers, own)?)
            },
            // SAFETY: the caller's contract.
            KernelCode::Exchange(code) => unsafe { code.run(pointers) },
            KernelCode::Loop(code) => {
                let repeated = kernel.repeated().expect("the work of a loop");
                // SAFETY: the caller's contract.
                unsafe { code.run(repeated, launcher, machine, pointers) }
            }
        }
    }
}

/// The text of the code of a kernel, looked for in bodies of loops, too.
pub(super) fn text<'m>(
    plan: &Plan,
    kernels: &[KernelCode],
    machine: &'m Machine,
    name: &str,
    of: &dyn Fn(&'m Text) -> &'m String,
) -> Option<String> {
    plan.graph.kernels.iter().zip(kernels).find_map(|(kernel, work)| match work {
        KernelCode::Program(program, _) => (kernel.name == name).then(|| {
            let texts: Vec<_> = program.functions().map(|f| of(machine.text(f)).clone()).collect();
            texts.join("\n")
        }),
        KernelCode::Loop(code) => text(&kernel.repeated()?.body, &code.kernels, machine, name, of),
        KernelCode::Exchange(_) => None,
    })
}
