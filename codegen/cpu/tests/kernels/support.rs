//! Builds kernel graphs by hand and compares executables with the interpreter.

use kernfusion_codegen::{States, Temporaries};
use kernfusion_cpu::isa::Isa;
use kernfusion_cpu::{Options, PlanExecutable};
use kernfusion_ir::evaluate::{Array, Precision};
use kernfusion_ir::kernel::interpret;
use kernfusion_ir::kernel::{
    Buffer, BufferId, BufferRole, Domain, Form, Index, Indirect, InstrKind, Kernel, KernelGraph, Place, Plan,
    Region, Scalar, Store, StoreMode,
};
use kernfusion_ir::{DType, Literal, Tensor, TensorType};
use std::collections::BTreeMap;

pub(crate) const FLOATS: [DType; 4] = [DType::F32, DType::BF16, DType::F16, DType::F64];

/// A small generator of test numbers (xorshift64*).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Between −1 and 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    pub(crate) fn tensor(&mut self, ty: &TensorType, low: f64, high: f64) -> Tensor {
        let draw = |_| (low + high) / 2.0 + self.unit() * (high - low) / 2.0;
        Tensor::from_f64(ty, &(0..ty.elements()).map(draw).collect::<Vec<_>>())
    }
}

/// A graph of kernels in the making.
#[derive(Default)]
pub(crate) struct Bench {
    pub(crate) graph: KernelGraph,
    pub(crate) inputs: BTreeMap<String, Tensor>,
}

impl Bench {
    pub(crate) fn input(&mut self, name: &str, tensor: Tensor) -> BufferId {
        let buffer = self.buffer(name, tensor.ty(), BufferRole::Input);
        self.inputs.insert(name.into(), tensor);
        buffer
    }

    pub(crate) fn output(&mut self, name: &str, dtype: DType, shape: &[usize]) -> BufferId {
        let ty = TensorType::new(dtype, shape);
        let buffer = self.buffer(name, ty.clone(), BufferRole::Temporary);
        self.graph.outputs.push((name.into(), buffer, ty));
        buffer
    }

    pub(crate) fn buffer(&mut self, name: &str, ty: TensorType, role: BufferRole) -> BufferId {
        self.graph.buffers.push(Buffer { name: name.into(), ty, role, continues: None });
        BufferId(self.graph.buffers.len() as u32 - 1)
    }

    pub(crate) fn kernel(&mut self, form: Form, domain: Domain, region: Region, stores: Vec<Store>) {
        let name = format!("kernel{}", self.graph.kernels.len());
        self.graph.kernels.push(Kernel { name, form, domain, region, stores, covers: vec![] });
    }

    /// A plan in which every temporary has its own place in the arena.
    pub(crate) fn plan(&self) -> Plan {
        let mut arena_bytes = 0;
        let place = |buffer: &Buffer| match buffer.role {
            BufferRole::Input | BufferRole::State => Place::Own,
            BufferRole::Temporary => {
                let offset = arena_bytes;
                arena_bytes += buffer.ty.bytes().next_multiple_of(64);
                Place::Arena { offset }
            }
        };
        let places = self.graph.buffers.iter().map(place).collect();
        Plan { graph: self.graph.clone(), places, arena_bytes, preparation: 0 }
    }

    pub(crate) fn run(&self, options: &Options) -> BTreeMap<String, Tensor> {
        let states = States::new();
        for buffer in self.graph.buffers.iter().filter(|buffer| buffer.role == BufferRole::State) {
            states.set(&buffer.name, &self.inputs[&buffer.name]).unwrap();
        }
        let mut executable = PlanExecutable::compile(self.plan(), &states, options).unwrap();
        let is_input = |name: &str| {
            let mut buffers = self.graph.buffers.iter();
            buffers.any(|buffer| buffer.role == BufferRole::Input && buffer.name == name)
        };
        let inputs: Vec<_> = self.inputs.iter().filter(|(name, _)| is_input(name)).collect();
        let inputs: Vec<_> = inputs.into_iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let outputs = executable.run(&inputs).unwrap();
        let outputs = outputs.iter().map(|(name, tensor)| (name.to_owned(), tensor.clone()));
        let names = states.names();
        let updated = self.graph.updates.iter().map(|(state, _)| &self.graph.buffer(*state).name);
        let states = updated.filter(|name| names.contains(name));
        outputs.chain(states.map(|name| (name.clone(), executable.states().get(name).unwrap()))).collect()
    }

    /// Runs on every instruction set, with one to three threads, in both kinds of memory; results must be within
    /// `tolerance` (relative above 1, absolute below) of the interpreter's, and the same bits for any number of
    /// threads.
    pub(crate) fn check(&self, tolerance: f64) {
        let array = |tensor: &Tensor| Array { ty: tensor.ty(), values: tensor.to_f64() };
        let inputs = self.inputs.iter().map(|(name, tensor)| (name.clone(), array(tensor))).collect();
        let expected = interpret(&self.graph, &inputs, Precision::Declared).unwrap();
        let tensors =
            expected.iter().map(|(name, array)| (name.clone(), Tensor::from_f64(&array.ty, &array.values)));
        let expected: BTreeMap<_, _> = tensors.collect();
        for isa in Isa::available() {
            let options =
                |threads, temporaries| Options { threads, isa: Some(isa), temporaries, ..Options::default() };
            let one = self.run(&options(1, Temporaries::Arena));
            assert_eq!(one.len(), expected.len());
            for (name, tensor) in &one {
                compare(name, tensor, &expected[name], tolerance, isa);
            }
            for threads in 2..=3 {
                let more = self.run(&options(threads, Temporaries::Fresh));
                for (name, tensor) in &one {
                    assert_eq!(tensor.bytes(), more[name].bytes(), "{name} on {threads} threads");
                }
            }
        }
    }
}

fn compare(name: &str, got: &Tensor, expected: &Tensor, tolerance: f64, isa: Isa) {
    assert_eq!(got.ty(), expected.ty());
    for (at, (got, expected)) in got.to_f64().into_iter().zip(expected.to_f64()).enumerate() {
        let near = (got - expected).abs() <= tolerance * expected.abs().max(1.0);
        let same = got == expected || got.is_nan() && expected.is_nan();
        assert!(near || same, "{name}[{at}] is {got}, expected {expected} on {isa}");
    }
}

/// A region in the making.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) region: Region,
    pub(crate) stores: Vec<Store>,
}

impl Program {
    pub(crate) fn push(&mut self, kind: InstrKind, dtype: DType) -> Scalar {
        self.region.push(kind, dtype)
    }

    pub(crate) fn load(&mut self, buffer: BufferId, dtype: DType, index: Index) -> Scalar {
        self.push(InstrKind::Load { buffer, index, guard: vec![] }, dtype)
    }

    pub(crate) fn constant(&mut self, value: f64, dtype: DType) -> Scalar {
        self.push(InstrKind::Constant(Literal::new(value)), dtype)
    }

    pub(crate) fn store(&mut self, value: Scalar, buffer: BufferId, index: Index) {
        self.stores.push(Store { value, buffer, index, mode: StoreMode::Set });
    }
}

/// `Σ strides·coordinates`.
pub(crate) fn at(strides: &[i64]) -> Index {
    Index { offset: 0, strides: strides.to_vec(), indirect: vec![] }
}

pub(crate) fn term(value: Scalar, limit: usize, stride: i64) -> Indirect {
    Indirect { value, limit, stride }
}
