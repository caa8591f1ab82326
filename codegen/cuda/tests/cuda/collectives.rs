//! What several ranks exchange.

use crate::judge::planned;
use kernfusion_codegen::threads;
use kernfusion_cuda::Options;
use kernfusion_ir::kernel::Plan;
use kernfusion_ir::{Builder, Collective, DType, Exchange, Graph, InputRole, Origin, TensorType};
use kernfusion_passes::fuse::Fusion;

/// The second rank of four.
pub(crate) fn second_of_four() -> Options {
    Options { communicator: threads(4).into_iter().nth(1), ..Options::default() }
}

/// The sum of what four ranks have, of which each takes its part.
pub(crate) fn sum(dtype: DType) -> Plan {
    let mut graph = Graph::new("exchange");
    let mut b = Builder::new(&mut graph, Origin::default());
    let x = b.input("x", InputRole::Data, TensorType::new(dtype, [45])).expect("a fresh name");
    let y = b.op(Collective::new(Exchange::AllReduce, 4), &[x]).expect("of floats");
    graph.output("y", y);
    planned(&graph, Fusion::Full)
}
