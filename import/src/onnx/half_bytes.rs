//! Matrices of half bytes that products alone read are kept in the order in which they are read here.
//!
//! A byte of `MatMulNBits` has two neighbours. Byte j of a group of 32 here has number j and number 16 + j ([`Tensor::half_bytes`]), and each group has a scale
//! of its own. So a matrix and its scales are put into that order when the file is read, if its blocks are whole groups.
//!
//! [`Tensor::half_bytes`]: kernfusion::trace::Tensor::half_bytes

use super::messages::{GraphProto, NodeProto, TensorProto};
use super::operator_name;
use super::quantized::{UINT8, shift};
use super::tensors::described;
use crate::operators::onnx::contributed::MATRIX_OF_HALF_BYTES;
use kernfusion::HostTensor;
use kernfusion::passes::GROUP;
use kernfusion_ir::{DType, TensorType};
use std::collections::HashMap;

/// How a matrix is divided: rows, blocks of each, and groups of each block.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    rows: usize,
    blocks: usize,
    groups: usize,
}

/// What an initializer is kept as.
#[derive(Clone, Copy)]
pub(super) enum Arranged {
    /// Half bytes in groups.
    Bytes(Blocks),
    /// A scale for each group.
    Scales(Blocks),
}

/// The initializers that are matrices of half bytes and their scales, read by one product each.
pub(super) fn arranged(graph: &GraphProto) -> HashMap<&str, Arranged> {
    let mut reads: HashMap<&str, usize> = HashMap::new();
    let read =
        graph.node.iter().flat_map(|node| &node.input).chain(graph.output.iter().map(|output| &output.name));
    read.for_each(|name| *reads.entry(name).or_default() += 1);
    let initializers: HashMap<_, _> =
        graph.initializer.iter().map(|proto| (proto.name.as_str(), proto)).collect();
    let of_node = |node: &NodeProto| {
        let [_, bytes, scales, ..] = &node.input[..] else { return None };
        let [packed, kept] = [bytes, scales].map(|name| initializers.get(name.as_str()).copied());
        let blocks = blocks(node, packed?, kept?)?;
        let (packed, kept) = (packed?.name.as_str(), kept?.name.as_str());
        let is_read_here = [packed, kept].iter().all(|name| reads.get(name) == Some(&1));
        is_read_here.then_some([(packed, Arranged::Bytes(blocks)), (kept, Arranged::Scales(blocks))])
    };
    graph.node.iter().filter_map(of_node).flatten().collect()
}

/// How the matrix of a product is divided, if its blocks are whole groups in order, and both tensors have as many elements as that takes.
fn blocks(node: &NodeProto, packed: &TensorProto, scales: &TensorProto) -> Option<Blocks> {
    let attribute = |name: &str| {
        let given = node.attribute.iter().find(|given| given.name == name)?;
        usize::try_from(given.i).ok().filter(|&number| number > 0)
    };
    let is_known = operator_name(node) == MATRIX_OF_HALF_BYTES && attribute("bits").unwrap_or(4) == 4;
    let is_ordered = node.input.get(4).is_none_or(String::is_empty);
    let [rows, columns, block] = [attribute("N")?, attribute("K")?, attribute("block_size")?];
    let is_whole = block.is_multiple_of(GROUP) && block.is_power_of_two() && columns.is_multiple_of(block);
    if !is_known || !is_ordered || !is_whole {
        return None;
    }
    let blocks = Blocks { rows, blocks: columns / block, groups: block / GROUP };
    let ([bytes, of_scales], count) =
        ([packed, scales].map(|proto| described(proto).ok()), rows.checked_mul(columns)?);
    let (of_bytes, (of_scales, _)) = (bytes?.0, of_scales?);
    let fits = packed.data_type == UINT8
        && of_bytes.rank() > 1
        && of_bytes.elements() == count / 2
        && of_scales.dtype.is_float()
        && of_scales.dtype != DType::F64
        && of_scales.rank() > 0
        && of_scales.elements() == rows * blocks.blocks;
    fits.then_some(blocks)
}

impl Arranged {
    /// The initializer in that order.
    pub(super) fn of(self, value: &HostTensor) -> HostTensor {
        match self {
            Arranged::Bytes(blocks) => blocks.bytes(value),
            Arranged::Scales(blocks) => blocks.scales(value),
        }
    }
}

impl Blocks {
    /// Bytes that are kept less 128, of neighbours, as `i8[rows, groups, 16]`.
    fn bytes(self, neighbours: &HostTensor) -> HostTensor {
        const HALF: usize = GROUP / 2;
        let mut bytes = neighbours.bytes().to_vec();
        shift(&mut bytes);
        for group in bytes.chunks_exact_mut(HALF) {
            let own: [u8; HALF] = group.try_into().expect("as many bytes");
            let number = |at: usize| own[at / 2] >> (at % 2 * 4) & 15;
            group.iter_mut().enumerate().for_each(|(j, byte)| *byte = number(j) | number(HALF + j) << 4);
        }
        let ty = TensorType::new(DType::I8, [self.rows, self.blocks * self.groups, HALF]);
        HostTensor::from_bytes(&ty, &bytes).expect("as many bytes as before")
    }

    /// Scales of blocks as `f32[rows, groups]`.
    fn scales(self, of_blocks: &HostTensor) -> HostTensor {
        let repeated = |scale: f64| std::iter::repeat_n(scale as f32, self.groups);
        let scales: Vec<f32> = of_blocks.to_f64().into_iter().flat_map(repeated).collect();
        HostTensor::new([self.rows, self.blocks * self.groups], scales)
    }
}
