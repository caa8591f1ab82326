//! The operators of ONNX: each row says how its inputs and attributes are arguments, and which function of the table they are given to.
//!
//! ```text
//! onnx.Softmax   13   self ; dim=axis   like_self   as aten.softmax.int
//! ```
//!
//! A row follows the text of an operator in the version of the operator set that it names (`docs/Operators.md` and `docs/Changelog.md` of
//! ONNX), and reads what earlier versions from 13 on wrote, too.

pub(crate) mod contributed;
mod element_type;
mod functions;
pub(crate) mod quantization;
pub(crate) mod signature;
mod types;
mod windows;

pub(crate) use element_type::element_type;

use super::Operator;
use crate::call::{Built, Call};
use contributed as c;
use functions as f;
use kernfusion::nn::Cell;
use kernfusion::trace::Tensor;
use quantization as q;
use std::sync::LazyLock;
use types::{Types, unseen};

/// What makes an operator one of ONNX.
pub(crate) struct Onnx {
    /// The version of the operator set whose text the row follows.
    pub(crate) version: u32,
    /// [How inputs and attributes are arguments](signature).
    pub(crate) takes: &'static str,
    /// The types of results that the function looks at.
    pub(crate) types: Types,
}

/// A row of the table.
struct Row {
    name: &'static str,
    version: u32,
    takes: &'static str,
    types: Types,
    function: Function,
}

/// The function of a row.
enum Function {
    /// That of an operator of PyTorch.
    As(&'static str),
    /// One that gives something else.
    Own(&'static str, fn(&Call<'_>) -> Built),
}

use Function::{As, Own};

const fn row(name: &'static str, version: u32, takes: &'static str, types: Types, function: Function) -> Row {
    Row { name, version, takes, types, function }
}

/// All operators of ONNX that are known.
pub(super) fn operators() -> &'static [Operator] {
    static ALL: LazyLock<Vec<Operator>> = LazyLock::new(|| ROWS.iter().map(operator).collect());
    &ALL
}

fn operator(row: &Row) -> Operator {
    let (gives, build) = match row.function {
        Own(gives, build) => (gives, build),
        As(name) => {
            let other = super::of_pytorch().find(|operator| operator.name == name);
            let other =
                other.unwrap_or_else(|| panic!("{} is as {name}, which is not in the table", row.name));
            (other.gives, other.build)
        }
    };
    let onnx = Onnx { version: row.version, takes: row.takes, types: row.types };
    Operator { name: row.name, gives, build, view: None, onnx: Some(onnx) }
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    row("onnx.Abs",            13, "self", types::like_self, As("aten.abs.default")),
    row("onnx.Neg",            13, "self", types::like_self, As("aten.neg.default")),
    row("onnx.Sign",           13, "self", types::like_self, As("aten.sign.default")),
    row("onnx.Exp",            13, "self", types::like_self, As("aten.exp.default")),
    row("onnx.Log",            13, "self", types::like_self, As("aten.log.default")),
    row("onnx.Sqrt",           13, "self", types::like_self, As("aten.sqrt.default")),
    row("onnx.Reciprocal",     13, "self", types::like_self, As("aten.reciprocal.default")),
    row("onnx.Sin",            22, "self", types::like_self, As("aten.sin.default")),
    row("onnx.Cos",            22, "self", types::like_self, As("aten.cos.default")),
    row("onnx.Tan",            22, "self", types::like_self, As("aten.tan.default")),
    row("onnx.Tanh",           13, "self", types::like_self, As("aten.tanh.default")),
    row("onnx.Erf",            13, "self", types::like_self, As("aten.erf.default")),
    row("onnx.Floor",          13, "self", types::like_self, As("aten.floor.default")),
    row("onnx.Ceil",           13, "self", types::like_self, As("aten.ceil.default")),
    row("onnx.Round",          22, "self", types::like_self, As("aten.round.default")),
    row("onnx.Identity",       25, "self", unseen, As("aten.alias.default")),
    row("onnx.IsNaN",          20, "self", unseen, As("aten.isnan.default")),
    row("onnx.IsInf",          20, "self; !detect_negative=1 !detect_positive=1", unseen, As("aten.isinf.default")),
    row("onnx.Add",            14, "self other", types::broadcast, As("aten.add.Tensor")),
    row("onnx.Sub",            14, "self other", types::broadcast, As("aten.sub.Tensor")),
    row("onnx.Mul",            14, "self other", types::broadcast, As("aten.mul.Tensor")),
    row("onnx.Div",            14, "self other", types::broadcast, Own("self / other; of whole numbers without the fraction", f::divided)),
    row("onnx.Mod",            13, "self other; fmod?", types::broadcast, Own("what division of self by other leaves, with the sign of other, or of self if fmod", f::rest)),
    row("onnx.Pow",            15, "self exponent^", types::like_self, Own("self to the power of exponent", f::power)),
    row("onnx.Max",            13, "tensors...", unseen, Own("the largest of tensors", |call| f::accumulated(call, |x, y| x.maximum(y)))),
    row("onnx.Min",            13, "tensors...", unseen, Own("the smallest of tensors", |call| f::accumulated(call, |x, y| x.minimum(y)))),
    row("onnx.Sum",            13, "tensors...", unseen, Own("the sum of tensors", |call| f::accumulated(call, |x, y| x + y))),
    row("onnx.Mean",           13, "tensors...", unseen, Own("the mean of tensors", f::mean)),
    row("onnx.Equal",          19, "self other", unseen, As("aten.eq.Tensor")),
    row("onnx.Less",           13, "self other", unseen, As("aten.lt.Tensor")),
    row("onnx.LessOrEqual",    16, "self other", unseen, As("aten.le.Tensor")),
    row("onnx.Greater",        13, "self other", unseen, As("aten.gt.Tensor")),
    row("onnx.GreaterOrEqual", 16, "self other", unseen, As("aten.ge.Tensor")),
    row("onnx.Not",             1, "self", unseen, As("aten.logical_not.default")),
    row("onnx.And",             7, "self other", unseen, As("aten.logical_and.default")),
    row("onnx.Or",              7, "self other", unseen, As("aten.logical_or.default")),
    row("onnx.Xor",             7, "self other", unseen, As("aten.logical_xor.default")),
    row("onnx.BitwiseAnd",     18, "self other", types::broadcast, As("aten.bitwise_and.Tensor")),
    row("onnx.BitwiseOr",      18, "self other", types::broadcast, As("aten.bitwise_or.Tensor")),
    row("onnx.BitwiseXor",     18, "self other", types::broadcast, As("aten.bitwise_xor.Tensor")),
    row("onnx.BitwiseNot",     18, "self", types::like_self, As("aten.bitwise_not.default")),
    row("onnx.Where",          16, "condition self other", types::chosen, As("aten.where.self")),
    row("onnx.Clip",           13, "self min max", types::like_self, As("aten.clamp.Tensor")),
    row("onnx.Cast",           25, "self; to -saturate -round_mode", types::cast, As("aten._to_copy.default")),
    row("onnx.CastLike",       25, "self like~; -saturate -round_mode", types::like, As("aten.type_as.default")),
    row("onnx.QuantizeLinear", 25, "self y_scale y_zero@; axis output_dtype !block_size=0 -saturate -precision", unseen, Own("self / y_scale + y_zero as bytes", q::quantized)),
    row("onnx.DequantizeLinear", 25, "self self_scale self_zero@; axis output_dtype !block_size=0", unseen, Own("(self − self_zero) · self_scale", q::dequantized)),
    row("onnx.DynamicQuantizeLinear", 11, "self", unseen, Own("self as bytes from its least to its largest number; their scale and their zero point", q::dynamically_quantized)),
    row("onnx.Dropout",        22, "self p# train#; -seed", unseen, Own("self, in training with elements that are 0 with probability p and the others divided by 1 − p", f::dropout)),

    row("onnx.Sigmoid",        13, "self", types::like_self, As("aten.sigmoid.default")),
    row("onnx.Relu",           14, "self", types::like_self, As("aten.relu.default")),
    row("onnx.Softplus",       22, "self", types::like_self, As("aten.softplus.default")),
    row("onnx.Mish",           22, "self", types::like_self, As("aten.mish.default")),
    row("onnx.HardSwish",      22, "self", types::like_self, As("aten.hardswish.default")),
    row("onnx.HardSigmoid",    22, "self; alpha|0.2 beta|0.5", unseen, Own("alpha · self + beta between 0 and 1", f::hard_sigmoid)),
    row("onnx.Gelu",           20, "self; approximate", types::like_self, As("aten.gelu.default")),
    row("onnx.Swish",          24, "self; alpha|1", unseen, Own("self · sigmoid(alpha · self)", f::swish)),
    row("onnx.LeakyRelu",      16, "self; negative_slope=alpha", types::like_self, As("aten.leaky_relu.default")),
    row("onnx.PRelu",          16, "self weight", unseen, Own("self, or weight · self below 0", f::parametric)),
    row("onnx.Elu",            22, "self; alpha", types::like_self, As("aten.elu.default")),
    row("onnx.Celu",           12, "self; alpha", types::like_self, As("aten.celu.default")),
    row("onnx.Selu",           22, "self", types::like_self, As("aten.selu.default")),
    row("onnx.Softmax",        13, "self; dim=axis", types::like_self, As("aten.softmax.int")),
    row("onnx.LogSoftmax",     13, "self; dim=axis", types::like_self, As("aten.log_softmax.int")),

    row("onnx.ConstantOfShape", 25, "size##; value", unseen, Own("value in the shape size", f::filled)),
    row("onnx.Range",          11, "start# limit# delta#", unseen, Own("start, start + delta, … before limit", f::range)),
    row("onnx.Shape",          25, "self~; start end", unseen, Own("the extents of self from start to end", f::shape)),
    row("onnx.Size",           25, "self~", unseen, Own("the number of elements of self", f::size)),

    row("onnx.Reshape",        25, "self size##; allowzero?", types::reshape, As("aten.reshape.default")),
    row("onnx.Flatten",        25, "self; axis|1", types::flatten, Own("the axes before axis as one, and those from it on", |call| call.in_shape(&call.tensor("self")?))),
    row("onnx.Squeeze",        25, "self dim##", types::squeeze, As("aten.squeeze.dims")),
    row("onnx.Unsqueeze",      25, "self dim##", types::unsqueeze, As("aten.unsqueeze.default")),
    row("onnx.Expand",         13, "self size##", types::expand, As("aten.expand.default")),
    row("onnx.Transpose",      25, "self; dims=perm", unseen, Own("the axes in the order dims, or in reverse", f::transposed)),
    row("onnx.Slice",          13, "self starts## ends## axes## steps##", unseen, Own("every steps-th index of axes from starts to ends", f::sliced)),
    row("onnx.Split",          18, "self sizes##; dim=axis num_outputs", types::split, Own("parts of sizes along dim, or num_outputs equal ones", super::movement::pieces)),
    row("onnx.SplitToSequence", 11, "self sizes##; dim=axis !keepdims=1", types::split, Own("parts along dim of one size, or of sizes", super::movement::pieces)),
    row("onnx.Concat",         13, "tensors...; dim=axis", types::concat, As("aten.cat.default")),
    row("onnx.Tile",           13, "self repeats##", types::tile, As("aten.repeat.default")),
    row("onnx.Pad",            25, "self pads## value# axes##; mode", unseen, Own("as mode says around self: value, the edge, or a reflection", f::padded)),
    row("onnx.DepthToSpace",   13, "self; blocksize mode", unseen, Own("groups of blocksize² channels as squares of positions", f::depth_to_space)),

    row("onnx.Gather",         13, "self index; dim=axis", unseen, Own("the parts at index along dim", f::gathered)),
    row("onnx.GatherElements", 13, "self index; dim=axis", unseen, Own("out[i][j] = self[index[i][j]][j], along dim", f::gathered_elements)),
    row("onnx.GatherND",       13, "self index; !batch_dims=0", unseen, Own("the parts at the places that rows of index are", f::gathered_nd)),
    row("onnx.ScatterND",      18, "self index src; reduction", unseen, Own("self with src at the places that rows of index are", f::scattered_nd)),
    row("onnx.ScatterElements", 18, "self index src; dim=axis reduction", unseen, Own("self with self[index[i][j]][j] = src[i][j], along dim", f::scattered_elements)),
    row("onnx.OneHot",         11, "self depth# values; dim=axis", unseen, Own("the second of values at the class that self says, else the first", f::one_hot)),
    row("onnx.Trilu",          14, "self diagonal#; upper?", unseen, Own("matrices with zeros below the diagonal, or above it", f::triangle)),
    row("onnx.TopK",           24, "self k#; dim=axis largest? -sorted", unseen, As("aten.topk.default")),

    row("onnx.ReduceSum",      13, "self dim##; dim=axes keepdim=keepdims? noop_with_empty_axes?", types::reduced, As("aten.sum.dim_IntList")),
    row("onnx.ReduceMean",     18, "self dim##; dim=axes keepdim=keepdims? noop_with_empty_axes?", types::reduced, As("aten.mean.dim")),
    row("onnx.ReduceMax",      20, "self dim##; dim=axes keepdim=keepdims? noop_with_empty_axes?", types::reduced, As("aten.amax.default")),
    row("onnx.ReduceMin",      20, "self dim##; dim=axes keepdim=keepdims? noop_with_empty_axes?", types::reduced, As("aten.amin.default")),
    row("onnx.ReduceSumSquare", 18, "self dim##; dim=axes keepdim=keepdims? noop_with_empty_axes?", types::reduced, Own("the sum of squares over dim", |call| f::reduced(call, |x, axes| x.square().sum(axes)))),
    row("onnx.ReduceL1",       18, "self dim##; dim=axes keepdim=keepdims? noop_with_empty_axes?", types::reduced, Own("the sum of absolute values over dim", |call| f::reduced(call, |x, axes| x.abs().sum(axes)))),
    row("onnx.ReduceL2",       18, "self dim##; dim=axes keepdim=keepdims? noop_with_empty_axes?", types::reduced, As("aten.linalg_vector_norm.default")),
    row("onnx.ReduceLogSumExp", 18, "self dim##; dim=axes keepdim=keepdims? noop_with_empty_axes?", types::reduced, As("aten.logsumexp.default")),
    row("onnx.ArgMax",         13, "self; dim=axis|0 keepdim=keepdims? !select_last_index=0", types::index_of_extreme, As("aten.argmax.default")),
    row("onnx.ArgMin",         13, "self; dim=axis|0 keepdim=keepdims? !select_last_index=0", types::index_of_extreme, As("aten.argmin.default")),
    row("onnx.CumSum",         14, "self dim#; !exclusive=0 !reverse=0", types::like_self, As("aten.cumsum.default")),

    row("onnx.MatMul",         13, "self other", unseen, As("aten.matmul.default")),
    row("onnx.Gemm",           13, "mat1 mat2 self; alpha beta transA? transB?", unseen, Own("alpha · mat1 · mat2 + beta · self, each of both matrices transposed if said", f::gemm)),
    row("onnx.MatMulInteger",  10, "self other self_zero@ other_zero@", unseen, Own("(self − self_zero) · (other − other_zero), of bytes as whole numbers", q::integer_product)),
    row("onnx.QLinearMatMul",  21, "self self_scale self_zero@ other other_scale other_zero@ y_scale y_zero@", unseen, Own("self · other as bytes of y_scale and y_zero, of what bytes stand for", q::quantized_product)),
    row("onnx.Einsum",         12, "tensors...; equation", types::einsum, As("aten.einsum.default")),

    row("onnx.LayerNormalization", 17, "input weight bias; axis eps=epsilon -stash_type", types::like_input, Own("(input − mean) / √(var + eps) · weight + bias over the axes from axis on; the mean and 1/√(var + eps)", f::layer_norm)),
    row("onnx.RMSNormalization", 23, "input weight; axis eps=epsilon|1e-5 -stash_type", types::like_input, Own("input / √(mean of squares + eps) · weight over the axes from axis on", f::rms_norm)),
    row("onnx.GroupNormalization", 21, "input weight bias; num_groups eps=epsilon -stash_type", types::like_input, As("aten.group_norm.default")),
    row("onnx.InstanceNormalization", 22, "input weight bias; eps=epsilon", types::like_input, As("aten.instance_norm.default")),
    row("onnx.BatchNormalization", 15, "input weight bias running_mean running_var; eps=epsilon momentum training=training_mode?", types::like_input, Own("(input − running_mean) / √(running_var + eps) · weight + bias; in training by the batch's own, and the running ones with these", f::batch_norm)),

    row("onnx.Attention",      23, "query key value attn_mask; is_causal? scale q_num_heads kv_num_heads softcap !qk_matmul_output_mode=0 -softmax_precision", unseen, Own("softmax(scale · query · keyᵀ + attn_mask) · value; heads share keys if these have fewer", f::attention)),
    row("onnx.Conv",           22, "input weight bias; stride=strides dilation=dilations groups=group pads auto_pad -kernel_shape", unseen, Own("windows of input times weight, plus bias", windows::convolution)),
    row("onnx.ConvTranspose",  22, "input weight bias; stride=strides dilation=dilations groups=group pads auto_pad output_padding -kernel_shape", unseen, Own("the transpose of Conv, plus bias", windows::transposed_convolution)),
    row("onnx.ConvInteger",    10, "input weight input_zero@ weight_zero@; stride=strides dilation=dilations groups=group pads auto_pad -kernel_shape", unseen, Own("windows of input − input_zero times weight − weight_zero, of bytes as whole numbers", q::integer_convolution)),
    row("onnx.QLinearConv",    10, "input input_scale input_zero@ weight weight_scale weight_zero@ y_scale y_zero@ bias; stride=strides dilation=dilations groups=group pads auto_pad -kernel_shape", unseen, Own("Conv as bytes of y_scale and y_zero, of what bytes stand for", q::quantized_convolution)),
    row("onnx.MaxPool",        22, "self; kernel_size=kernel_shape stride=strides dilation=dilations pads auto_pad ceil_mode? !storage_order=0", unseen, Own("the largest in each window", windows::pooled::<true>)),
    row("onnx.AveragePool",    22, "self; kernel_size=kernel_shape stride=strides dilation=dilations pads auto_pad ceil_mode? count_include_pad?|0", unseen, Own("the mean in each window", windows::pooled::<false>)),
    row("onnx.GlobalAveragePool", 22, "self", unseen, Own("the mean of each channel", |call| windows::pooled_whole(call, Tensor::mean_keep))),
    row("onnx.GlobalMaxPool",  22, "self", unseen, Own("the largest of each channel", |call| windows::pooled_whole(call, Tensor::max_keep))),
    row("onnx.Resize",         19, "self roi~ scales## sizes##; mode coordinate_transformation_mode nearest_mode cubic_coeff_a !antialias=0 !exclude_outside=0 -extrapolation_value keep_aspect_ratio_policy", unseen, Own("the nearest positions for each of the result, or a sum of two or four along each axis", windows::resized)),
    row("onnx.LSTM",           22, "input weight hidden bias sequence_lens~ initial_h initial_c; direction -hidden_size !input_forget=0 !layout=0", unseen, Own("a layer of LSTM in one or both directions: outputs, and the last h and C", |call| f::recurrent(call, Cell::Lstm, &[0, 2, 3, 1]))),
    row("onnx.GRU",            22, "input weight hidden bias sequence_lens~ initial_h; direction -hidden_size !layout=0 linear_before_reset?", unseen, Own("a layer of GRU in one or both directions: outputs, and the last h", f::gated_recurrent)),
    row("onnx.SimplifiedLayerNormalization", 1, "input weight; axis eps=epsilon|1e-5 -stash_type", types::like_input, Own("RMSNormalization, and what was divided by", f::rms_norm)),
    row("onnx.SoftmaxCrossEntropyLoss", 13, "self target weight; reduction ignore_index", unseen, As("aten.cross_entropy_loss.default")),
    row("onnx.NegativeLogLikelihoodLoss", 13, "self target weight; reduction ignore_index", unseen, As("aten.nll_loss_nd.default")),

    // Of onnxruntime.
    row("com.microsoft::Gelu",      1, "self", types::like_self, As("aten.gelu.default")),
    row("com.microsoft::BiasGelu",  1, "input bias", unseen, Own("gelu of input + bias", |call| c::biased(call, Tensor::gelu))),
    row("com.microsoft::FastGelu",  1, "input bias", unseen, Own("gelu by tanh of input + bias", |call| c::biased(call, Tensor::gelu_tanh))),
    row("com.microsoft::QuickGelu", 1, "self; alpha|1.702", unseen, Own("self · sigmoid(alpha · self)", f::swish)),
    row("com.microsoft::SkipLayerNormalization", 1, "input skip weight bias added; eps=epsilon|1e-12", types::like_input, Own("LayerNormalization of input + skip + added; the mean, 1/√(var + eps), and the sum", |call| c::skip_norm(call, true))),
    row("com.microsoft::SkipSimplifiedLayerNormalization", 1, "input skip weight added; eps=epsilon|1e-12", types::like_input, Own("RMSNormalization of input + skip + added; the mean, what was divided by, and the sum", |call| c::skip_norm(call, false))),
    row("com.microsoft::FusedMatMul", 1, "self other; alpha transA? transB? !transBatchA=0 !transBatchB=0", unseen, Own("alpha · self · other, each of both transposed if said", c::fused_product)),
    row("com.microsoft::DynamicQuantizeMatMul", 1, "self other other_scale other_zero@ bias", unseen, Own("self, rounded to bytes from its least to its largest number, times what other stands for, plus bias", c::dynamic_product)),
    row("com.microsoft::MatMulIntegerToFloat", 1, "self other self_scale other_scale self_zero@ other_zero@ bias", unseen, Own("the product of what bytes stand for, plus bias", c::product_of_bytes)),
    row("com.microsoft::MatMulNBits", 1, "self packed scales packed_zeros g_idx bias; K N block_size !bits=4 -accuracy_level !weight_prepacked=0", unseen, Own("self · wᵀ + bias; w of half bytes, of which each block has a scale and a zero point", c::product_of_half_bytes)),
    row("com.microsoft::QGemm",     1, "mat1 mat1_scale mat1_zero@ mat2 mat2_scale mat2_zero@ self y_scale y_zero@; alpha transA? transB?", unseen, Own("Gemm of what bytes stand for, as bytes if there is y_scale", c::quantized_gemm)),
    row("com.microsoft::QLinearAdd", 1, "self self_scale self_zero@ other other_scale other_zero@ y_scale y_zero@", unseen, Own("self + other as bytes, of what bytes stand for", |call| c::of_two_bytes(call, |x, y| x + y))),
    row("com.microsoft::QLinearMul", 1, "self self_scale self_zero@ other other_scale other_zero@ y_scale y_zero@", unseen, Own("self · other as bytes, of what bytes stand for", |call| c::of_two_bytes(call, |x, y| x * y))),
    row("com.microsoft::QLinearWhere", 1, "condition self self_scale self_zero@ other other_scale other_zero@ y_scale y_zero@", unseen, Own("self where condition holds, else other, as bytes, of what bytes stand for", c::quantized_choice)),
    row("com.microsoft::QLinearConcat", 1, "y_scale y_zero@ triples...; dim=axis", unseen, Own("what bytes stand for, each before its scale and zero point, one after another as bytes", c::quantized_concat)),
    row("com.microsoft::QLinearSigmoid", 1, "self self_scale self_zero@ y_scale y_zero@", unseen, Own("Sigmoid as bytes, of what bytes stand for", |call| c::of_bytes(call, |x| Ok(x.sigmoid())))),
    row("com.microsoft::QLinearLeakyRelu", 1, "self self_scale self_zero@ y_scale y_zero@; alpha|0.01", unseen, Own("LeakyRelu as bytes, of what bytes stand for", c::quantized_leaky_relu)),
    row("com.microsoft::QLinearSoftmax", 1, "self self_scale self_zero@ y_scale y_zero@; dim=axis opset", unseen, Own("Softmax as bytes, of what bytes stand for", c::quantized_softmax)),
    row("com.microsoft::QLinearGlobalAveragePool", 1, "self self_scale self_zero@ y_scale y_zero@; !channels_last=0", unseen, Own("GlobalAveragePool as bytes, of what bytes stand for", c::quantized_mean)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_function_and_takes_what_can_be_read() {
        for (row, operator) in ROWS.iter().zip(operators()) {
            let is_of_onnx =
                ["onnx.", "com.microsoft::"].iter().any(|domain| operator.name.starts_with(domain));
            assert!(is_of_onnx && !operator.gives.is_empty(), "{}", row.name);
            assert!(signature::inputs(row.takes).count() > 0, "{}", row.name);
            assert!(
                signature::attributes(row.takes).all(|found| !found.attribute.is_empty()),
                "{}",
                row.name
            );
        }
    }
}
