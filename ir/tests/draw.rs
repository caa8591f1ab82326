//! Pictures are grouped, complete and escaped; JSON reads back.

use kernfusion_ir::kernel::{
    Buffer, BufferId, BufferRole, Domain, Form, Index, Instr, InstrKind, Kernel, KernelGraph, Region, Scalar,
    Store, StoreMode,
};
use kernfusion_ir::samples::all;
use kernfusion_ir::{DType, Graph, TensorType, Unary};

fn graph() -> Graph {
    let text = r#"graph "a \"b\"" {
  %0 = input {name = "x<1>\\", dtype = f32, shape = [2, 3]} : f32[2,3]
  %1 = exp %0 : f32[2,3] in "blocks.0.mlp"
  %2 = add %1, %0 : f32[2,3] in "blocks.0"
  %3 = reduce %2 {op = sum, axes = [1]} : f32[2] in "head"
  output "y" = %3
}
"#;
    Graph::parse(text).unwrap()
}

#[test]
fn dot_has_a_cluster_for_each_scope() {
    let expected = r#"digraph "a \"b\"" {
  rankdir=TB;
  node [fontname="monospace"];
  v0 [label="x<1>\\\nf32[2,3]", shape=ellipse];
  out0 [label="y", shape=cds];
  subgraph "cluster_blocks" {
    label="blocks";
    subgraph "cluster_blocks.0" {
      label="0";
      v2 [label="add\nf32[2,3]", shape=box];
      subgraph "cluster_blocks.0.mlp" {
        label="mlp";
        v1 [label="exp\nf32[2,3]", shape=box];
      }
    }
  }
  subgraph "cluster_head" {
    label="head";
    v3 [label="reduce {op = sum, axes = [1]}\nf32[2]", shape=box];
  }
  v0 -> v1;
  v1 -> v2 [label="0"];
  v0 -> v2 [label="1"];
  v2 -> v3;
  v3 -> out0;
}
"#;
    assert_eq!(graph().to_dot(), expected);
}

#[test]
fn mermaid_has_a_subgraph_for_each_scope() {
    let expected = r#"---
title: "a \"b\""
---
flowchart TB
  v0(["x#60;1#62;#92;<br/>f32[2,3]"])
  out0>"y"]
  subgraph g_0 ["blocks"]
    subgraph g_0_0 ["0"]
      v2["add<br/>f32[2,3]"]
      subgraph g_0_0_0 ["mlp"]
        v1["exp<br/>f32[2,3]"]
      end
    end
  end
  subgraph g_1 ["head"]
    v3["reduce {op = sum, axes = [1]}<br/>f32[2]"]
  end
  v0 --> v1
  v1 -->|"0"| v2
  v0 -->|"1"| v2
  v2 --> v3
  v3 --> out0
"#;
    assert_eq!(graph().to_mermaid(), expected);
}

/// Two maps in a row; the first result is written in place of nothing and read once.
fn kernels() -> KernelGraph {
    let buffer = |name: &str, role| Buffer {
        name: name.into(),
        ty: TensorType::new(DType::F32, [4]),
        role,
        continues: None,
    };
    let kernel = |name: &str, op, from, to| {
        let load = InstrKind::Load { buffer: BufferId(from), index: Index::axis(1, 0), guard: vec![] };
        let kinds = [load, InstrKind::Unary(op, Scalar(0))];
        let instrs = kinds.map(|kind| Instr { kind, dtype: DType::F32 }).to_vec();
        let store =
            Store { value: Scalar(1), buffer: BufferId(to), index: Index::axis(1, 0), mode: StoreMode::Set };
        Kernel {
            name: name.into(),
            form: Form::Map,
            domain: Domain::flat([4]),
            region: Region { instrs },
            stores: vec![store],
            covers: vec![],
        }
    };
    KernelGraph {
        name: "two".into(),
        buffers: vec![
            buffer("w", BufferRole::State),
            buffer("t", BufferRole::Temporary),
            buffer("unused", BufferRole::Input),
        ],
        kernels: vec![kernel("exp", Unary::Exp, 0, 1), kernel("log", Unary::Log, 1, 0)],
        outputs: vec![("t".into(), BufferId(1), TensorType::new(DType::F32, [4]))],
        updates: vec![(BufferId(0), BufferId(0))],
        ..KernelGraph::default()
    }
}

#[test]
fn kernels_are_boxes_and_buffers_edges() {
    let expected = r#"digraph "two" {
  rankdir=TB;
  node [fontname="monospace"];
  b0 [label="w\nf32[4]", shape=ellipse];
  k0 [label="exp\n4 operations", shape=box];
  k1 [label="log\n4 operations", shape=box];
  out0 [label="t", shape=cds];
  out1 [label="update w", shape=cds];
  b0 -> k0;
  k0 -> k1 [label="t\nf32[4]"];
  k0 -> out0 [label="t\nf32[4]"];
  k1 -> out1 [label="w\nf32[4]"];
}
"#;
    assert_eq!(kernels().to_dot(), expected);
    assert!(kernels().to_mermaid().contains("  k0 -->|\"t<br/>f32[4]\"| k1\n"));
    let json: serde_json::Value = serde_json::from_str(&kernels().to_json()).unwrap();
    assert_eq!(json["kernels"][1]["region"]["instrs"][0]["kind"]["load"]["buffer"], 1);
    assert_eq!(json["buffers"][0]["role"], "state");
}

/// Every line of a picture of any sample is of a known form, so nothing breaks out of a string.
#[test]
fn pictures_of_samples_are_well_formed() {
    for sample in all(3) {
        let dot = sample.graph.to_dot();
        let depth = dot.lines().fold(0, |depth, line| match line.trim_start() {
            "}" => depth - 1,
            line if line.ends_with(" {") => depth + 1,
            line => {
                assert!(line.ends_with(';'), "{}: {line}", sample.name);
                depth
            }
        });
        assert_eq!(depth, 0, "{}", sample.name);
        let edges = dot.lines().filter(|line| line.contains(" -> ")).count();
        let operands = sample.graph.ids().map(|id| sample.graph[id].operands.len());
        assert_eq!(edges, operands.sum::<usize>() + sample.graph.outputs().len(), "{}", sample.name);
    }
}

#[test]
fn json_that_is_no_graph_is_refused() {
    let message = |text| Graph::from_json(text).unwrap_err().to_string();
    assert!(message("{").starts_with("not a graph in JSON: EOF"));
    let json = graph().to_json();
    let later = json.replacen("\"operands\": [\n        0\n      ]", "\"operands\": [7]", 1);
    assert_ne!(json, later);
    assert!(message(&later).contains("node 1 uses node 7, which comes later"), "{}", message(&later));
}
