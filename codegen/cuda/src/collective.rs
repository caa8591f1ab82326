//! What ranks exchange, as steps of a program: parts are moved by the communicator of the device, and summed by a function of ours, so that
//! no bit depends on a library's order of sums.
//!
//! ```text
//! all_reduce grad → sum among 4 ranks        exchange grad → scratch        (of each rank, its part that is ours)
//!                                            launch sum_of_parts(scratch, sum + our part)
//!                                            gather sum
//! ```
//!
//! What is exchanged as `bf16` is rounded into the scratch before, and read from there afterwards.

use super::launches::{Argument, Function, Launch, Launches, Parameter, StreamOp};
use super::lower::{Renderer, comment, unique};
use super::source::{Code, buffer_name, function_name, memory_type, narrowed};
use kernfusion_codegen::{CodegenError, Collectives, part_of};
use kernfusion_ir::kernel::{BufferId, BufferOffset, CollectiveCall, Kernel, KernelGraph, Transfer};
use kernfusion_ir::{DType, Exchange};

/// Threads of a block.
const THREADS: usize = 256;

/// A function that sums parts: `sum[i] = 0 + parts[0][i] + parts[1][i] + …`, for `bf16` added as `f32` and rounded once. One part is written as
/// another type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PartSum {
    /// The type of the parts, and that of their sum.
    dtypes: [DType; 2],
    /// How many parts there are.
    parts: usize,
    /// Elements from one part to the next.
    stride: usize,
    /// Elements that are summed.
    count: usize,
}

impl Renderer {
    /// Appends the steps of an exchange; `spot` says where its buffers lie.
    ///
    /// # Errors
    /// There are not as many ranks as the program has, or a part has more elements than indices of 32 bits reach.
    pub(super) fn collective(
        &mut self,
        program: &mut Launches,
        number: usize,
        graph: &KernelGraph,
        kernel: &Kernel,
        spot: &dyn Fn(BufferId) -> BufferOffset,
    ) -> Result<(), CodegenError> {
        let &CollectiveCall { op, from, to, scratch } = kernel.collective().expect("a kernel that exchanges");
        let unsupported = |what| CodegenError::Unsupported { kernel: kernel.name.clone(), what };
        let (rank, ranks) = self.options().communicator.as_ref().map_or((0, 1), |it| (it.rank(), it.ranks()));
        if ranks != op.ranks {
            return Err(unsupported(format!("an exchange among {} ranks where there are {ranks}", op.ranks)));
        }
        let ty = &graph.buffer(from).ty;
        let bytes = ty.bytes();
        if bytes == 0 {
            return Ok(());
        }
        let (from, to, scratch) = (spot(from), spot(to), scratch.map(spot));
        let behind = |start: BufferOffset, bytes| BufferOffset { offset: start.offset + bytes, ..start };
        if op.exchange == Exchange::AllGather {
            let transfer = Transfer { from, to: behind(to, rank * bytes), bytes };
            program.steps.push(StreamOp::Copy { kernel: number, transfer });
            let gather = StreamOp::Gather { kernel: number, at: to, bytes: bytes * ranks, part: bytes };
            program.steps.extend((ranks > 1).then_some(gather));
            return Ok(());
        }
        let is_whole = op.exchange == Exchange::AllReduce;
        if self.options().collectives == Collectives::Library && ranks > 1 {
            let count = if is_whole { ty.elements() } else { ty.elements() / ranks };
            program.steps.push(StreamOp::Sum { kernel: number, from, to, count, dtype: ty.dtype, is_whole });
            return Ok(());
        }
        let scratch = scratch.expect("the plan gives sums room for parts");
        let about = comment(graph, kernel);
        let launch = |renderer: &mut Self, program: &mut Launches, sum: PartSum, spots: [BufferOffset; 2]| {
            if i32::try_from(sum.count).is_err() {
                return Err(unsupported(format!("a sum of {} elements, more than 2^31,", sum.count)));
            }
            if sum.count > 0 {
                let bytes = [sum.parts * sum.count * sum.dtypes[0].size(), sum.count * sum.dtypes[1].size()];
                program.steps.push(StreamOp::Launch(Launch {
                    kernels: vec![number],
                    function: renderer.sum_of_parts(sum, &about),
                    grid: [sum.count.div_ceil(THREADS) as u32, 1, 1],
                    arguments: spots.map(Argument::Buffer).into(),
                    bytes,
                }));
            }
            Ok(())
        };
        // As they are sent: where, in how many bytes, and where the parts of all ranks come.
        let (sent, stride) = (op.sent_dtype(ty), op.stride(ty));
        let (bytes, part) = (ty.elements() * sent.size(), op.part(ty) * sent.size());
        let own = part_of(rank, op.part(ty), ty.elements());
        let converted = |dtypes| PartSum { dtypes, parts: 1, stride: 0, count: ty.elements() };
        let (given, parts) =
            if op.in_bf16 { (scratch, behind(scratch, ranks * stride)) } else { (from, scratch) };
        if op.in_bf16 {
            launch(self, program, converted([ty.dtype, sent]), [from, given])?;
        }
        program.steps.push(match ranks {
            1 => StreamOp::Copy { kernel: number, transfer: Transfer { from: given, to: parts, bytes } },
            _ => StreamOp::Exchange { kernel: number, from: given, bytes, part, to: parts, stride },
        });
        // What was sent is not needed any more.
        let whole = if op.in_bf16 { given } else { to };
        let (result, place) = match is_whole {
            true => (sent, behind(whole, own.start * sent.size())),
            false => (ty.dtype, to),
        };
        let sum =
            PartSum { dtypes: [sent, result], parts: ranks, stride: stride / sent.size(), count: own.len() };
        launch(self, program, sum, [parts, place])?;
        if is_whole {
            let gather = StreamOp::Gather { kernel: number, at: whole, bytes, part };
            program.steps.extend((ranks > 1).then_some(gather));
            if op.in_bf16 {
                launch(self, program, converted([sent, ty.dtype]), [whole, to])?;
            }
        }
        Ok(())
    }

    /// The function of a sum, which kernels share; the first one is its comment.
    fn sum_of_parts(&mut self, sum: PartSum, comment: &str) -> usize {
        if let Some(&known) = self.sums.get(&sum) {
            return known;
        }
        let PartSum { dtypes, parts, stride, count } = sum;
        let name = unique(&mut self.names, &function_name("sum_of_parts"));
        let [from, to] = ["parts", "sum"].map(buffer_name);
        let [part_type, sum_type] = dtypes.map(memory_type);
        let mut code = Code::default();
        comment.lines().for_each(|line| code.line(format!("// {line}").trim_end()));
        code.line("#include \"tile.cuh\"");
        code.line("");
        code.open(format!(
            "KERNEL __launch_bounds__({THREADS}, 1) {name}(const {part_type}* __restrict__ {from}, {sum_type}* __restrict__ {to})"
        ));
        code.line(format!("const int point = blockIdx.x * {THREADS} + threadIdx.x;"));
        code.line(format!("if (point >= {count}) return;"));
        code.line("float sum = 0.0f;");
        code.line(format!(
            "for (int part = 0; part < {parts}; part++) sum += widen({from}[part * {stride}ll + point]);"
        ));
        // Sums are rounded to the type of their parts, whatever they are written as.
        let rounded = match dtypes {
            [a, b] if a == b => "sum".into(),
            [parts, _] => format!("widen({})", narrowed("sum", parts)),
        };
        code.line(format!("{to}[point] = {};", narrowed(&rounded, dtypes[1])));
        code.close("");
        let [from, to] = [(from, dtypes[0], false), (to, dtypes[1], true)];
        let parameters =
            [from, to].map(|(name, dtype, is_written)| Parameter { name, dtype, is_written }).into();
        self.functions.push(Function {
            name,
            text: code.finish(),
            parameters,
            threads: THREADS,
            shared_bytes: 0,
            blocks: 1,
            is_packed: false,
        });
        let function = self.functions.len() - 1;
        self.sums.insert(sum, function);
        function
    }
}
