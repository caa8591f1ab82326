//! The text form reads back what it writes, and refuses everything else with a place and a reason.

use kernfusion_ir::text::DEEPEST;
use kernfusion_ir::{Graph, Location, Origin};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const TRAIN: &str = r#"graph "train" {
  %0 = input {name = "x", dtype = i32, shape = [12, 64]} : i32[12,64]
  %1 = state {name = "wte.weight", dtype = f32, shape = [65, 128]} : f32[65,128]
  %2 = gather %1, %0 {axis = 0} : f32[12,64,128] in "wte" at "src/nn.rs":12:5
  %3 = constant {value = -inf, dtype = f32} : f32[]
  %4 = broadcast %3 {shape = [12, 64, 128], axes = []} : f32[12,64,128] in "wte"
  %5 = max %2, %4 : f32[12,64,128] at "a \"b\"\\.rs":1:2
  %6 = pad %5 {low = [0, 0, 0], high = [0, 1, 2], value = NaN} : f32[12,65,130]
  %7 = reduce %6 {op = sum, axes = [0, 1, 2]} : f32[]
  %8 = mul %1, %1 : f32[65,128]
  output "loss" = %7
  update "wte.weight" = %8
}
"#;

#[test]
fn text_is_what_was_parsed() {
    let graph = Graph::parse(TRAIN).unwrap();
    assert_eq!(graph.to_string(), TRAIN);
    assert_eq!(graph.verify(), Ok(()));
    let gather = &graph[graph.ids().nth(2).unwrap()];
    let location = Location { file: "src/nn.rs".into(), line: 12, column: 5 };
    assert_eq!(gather.origin, Origin::new(Some(location), "wte"));
}

#[test]
fn names_blanks_types_and_order_are_free() {
    let free =
        "graph\"g\"{output\"y\"=%sum # before its definition\n%a.1=input{dtype=f32,shape=[2,],name=\"x\"}}";
    assert_eq!(error(free), "line 2, column 31: expected a whole number, found `]`");
    let free =
        "graph\"g\"{output\"y\"=%sum#c\n%a.1=input{dtype=f32,shape=[2],name=\"x\"}%sum=\nadd%a.1,%a.1}";
    let plain = r#"graph "g" {
  %0 = input {name = "x", dtype = f32, shape = [2]} : f32[2]
  %1 = add %0, %0 : f32[2]
  output "y" = %1
}
"#;
    assert_eq!(Graph::parse(free).unwrap().to_string(), plain);
    assert_eq!(Graph::parse(free), Graph::parse(plain));
}

#[test]
fn operands_may_come_later_if_types_are_written() {
    let later =
        r#"graph "g" { %0 = exp %1 : f32[2] %1 = input {name = "x", dtype = f32, shape = [2]} : f32[2] }"#;
    assert!(Graph::parse(later).unwrap().verify().is_err());
    let untyped = later.replace(" : f32[2]", "");
    assert_eq!(error(&untyped), "line 1, column 22: %1 comes later, so its type must be written");
}

fn error(text: &str) -> String {
    Graph::parse(text).unwrap_err().to_string()
}

/// The error of a graph with these statements, which start on line 2.
fn statement_error(statements: &str) -> String {
    error(&format!("graph \"g\" {{\n{statements}\n}}"))
}

#[test]
fn errors_name_the_place_and_the_reason() {
    let cases = [
        ("%0 = ad %1, %2", "line 2, column 6: unknown op `ad`"),
        ("%0 = constant {value = 1, dtype = f31}", "line 2, column 6: unknown dtype `f31`"),
        ("%0 = constant {value = 1, dtype = f32} : f8[]", "line 2, column 42: unknown dtype `f8`"),
        (
            "%0 = constant {value = 1, dtype = f32, x = 1}",
            "line 2, column 6: op `constant` has no attribute `x`",
        ),
        ("%0 = constant {value = 1}", "line 2, column 6: attribute `dtype` is missing"),
        ("%0 = constant {value = 1, value = 2}", "line 2, column 27: attribute `value` is given twice"),
        (
            "%0 = constant {value = a, dtype = f32}",
            "line 2, column 6: attribute `value` must be a number, not a",
        ),
        ("%0 = constant {value = 1x, dtype = f32}", "line 2, column 24: `1x` is no number"),
        (
            "%0 = constant {value = , dtype = f32}",
            "line 2, column 24: expected a number, a list, a word, a string or a graph, found `,`",
        ),
        ("%0 = constant {value = 1.5, dtype = i32}", "line 2, column 6: constant: 1.5 is not a value of i32"),
        ("%0 = exp %1", "line 2, column 10: %1 is not defined"),
        ("output \"y\" = %a", "line 2, column 14: %a is not defined"),
        (
            "%0 = iota {dtype = i32, shape = [2], axis = 0}\n%0 = exp %0",
            "line 3, column 1: %0 is defined twice",
        ),
        (
            "%0 = iota {dtype = i32, shape = [-2], axis = 0}",
            "line 2, column 34: expected a whole number, found `-2`",
        ),
        (
            "%0 = iota {dtype = i32, shape = [2], axis = 0} : i32[2",
            "line 3, column 1: expected `]`, found `}`",
        ),
        ("%0 iota", "line 2, column 4: expected `=`, found `iota`"),
        ("% = iota", "line 2, column 1: a value needs a name behind its `%`"),
        ("exp %0", "line 2, column 1: expected a statement or `}`, found `exp`"),
        ("output y = %0", "line 2, column 8: expected a name in quotes, found `y`"),
        (
            "%0 = constant {value = 1, dtype = f32} at \"f\":x:1",
            "line 2, column 47: expected a line, found `x`",
        ),
    ];
    for (statements, expected) in cases {
        assert_eq!(statement_error(statements), expected, "{statements}");
    }
    assert_eq!(error(""), "line 1, column 1: expected `graph`, found the end of the file");
    assert_eq!(
        error("graph \"g\" {"),
        "line 1, column 12: expected a statement or `}`, found the end of the file"
    );
    assert_eq!(error("graph \"g\" {} {"), "line 1, column 14: expected the end of the file, found `{`");
}

/// What [`Graph::parse_verified`] says of a graph with these statements, which start on line 2; its first line.
fn verified_error(statements: &str) -> String {
    let error = Graph::parse_verified(&format!("graph \"g\" {{\n{statements}\n}}")).unwrap_err();
    error.to_string().lines().next().unwrap_or_default().to_string()
}

const X: &str = "%0 = input {name = \"x\", dtype = f32, shape = [2]} : f32[2]\n";

#[test]
fn what_the_verifier_refuses_has_a_place() {
    let cases = [
        (
            "  %1 = exp %0 : f32[3]",
            "line 3, column 8: invariant 3 (type): %1 = exp: has the type f32[3], should have f32[2]",
        ),
        ("  %1 = exp %0, %0", "line 3, column 8: exp: takes 1 operand(s), not 2"),
        (
            "  %1 = add %0 : f32[2]",
            "line 3, column 8: invariant 3 (type): %1 = add: takes 2 operand(s), not 1",
        ),
        (
            "%1 = exp %2 : f32[2]\n%2 = exp %1 : f32[2]",
            "line 3, column 6: invariant 2 (operand order): %1 = exp: %2 does not come before its user",
        ),
        (
            "%1 = state {name = \"x\", dtype = f32, shape = []}",
            "line 3, column 6: invariant 5 (input names): %1 = state: the name \"x\" is taken",
        ),
        (
            "output \"y\" = %0\n output \"y\" = %0",
            "line 4, column 2: invariant 7 (output names): output \"y\": the name is taken",
        ),
        (
            "update \"z\" = %0",
            "line 3, column 1: invariant 8 (update): update \"z\": there is no state of this name",
        ),
        ("%1 = exp %2", "line 3, column 10: %2 is not defined"),
    ];
    for (statements, expected) in cases {
        assert_eq!(verified_error(&format!("{X}{statements}")), expected, "{statements}");
    }
}

/// A loop around these statements, whose body has a carried input %0 of the type `f32[]`.
fn loop_around(body: &str) -> String {
    let attributes = "length = 2, carried = 1, sliced = 0, order = forward, result = 0";
    let input = "%0 = input {name = \"c\", dtype = f32, shape = []}";
    format!("%1 = scan %0 {{{attributes}, body = graph \"b\" {{\n{input}\n{body}\n}}}}")
}

#[test]
fn what_is_wrong_in_a_body_has_a_place_there() {
    let start = "%0 = constant {value = 1, dtype = f32}\n";
    let sound = loop_around("output \"c\" = %0");
    assert!(Graph::parse_verified(&format!("graph \"g\" {{\n{start}{sound}}}")).is_ok());
    let cases = [
        (
            "%1 = exp %0 : f32[7]\noutput \"c\" = %1",
            "line 5, column 6: invariant 3 (type): %1 = exp: has the type f32[7], should have f32[]",
        ),
        ("%1 = add %0\noutput \"c\" = %1", "line 5, column 6: add: takes 2 operand(s), not 1"),
        ("output \"c\" = %9", "line 5, column 14: %9 is not defined"),
        (
            "update \"c\" = %0",
            "line 5, column 1: invariant 8 (update): update \"c\": there is no state of this name",
        ),
    ];
    for (body, expected) in cases {
        assert_eq!(verified_error(&format!("{start}{}", loop_around(body))), expected, "{body}");
    }
    let deeper =
        loop_around(&format!("{}\noutput \"c\" = %1", loop_around("%1 = neg %0, %0\noutput \"c\" = %1")));
    assert_eq!(
        verified_error(&format!("{start}{deeper}")),
        "line 7, column 6: neg: takes 1 operand(s), not 2"
    );
}

/// So many graphs in each other.
fn nested(graphs: usize) -> String {
    let body = (1..graphs).fold("output \"c\" = %0".to_string(), |body, _| {
        format!("{}\noutput \"c\" = %1", loop_around(&body))
    });
    format!("graph \"g\" {{\n%0 = input {{name = \"c\", dtype = f32, shape = []}}\n{body}\n}}")
}

#[test]
fn graphs_in_each_other_have_a_limit() {
    let deepest = Graph::parse_verified(&nested(DEEPEST)).unwrap();
    let text = deepest.to_string();
    assert_eq!(Graph::parse(&text).unwrap().to_string(), text);
    let deeper = Graph::parse(&nested(DEEPEST + 1)).unwrap_err();
    assert_eq!(deeper.message, format!("more than {DEEPEST} graphs stand in each other"));
    assert_eq!(deeper.line, 2 * DEEPEST + 1);
    // Far more than a stack has place for.
    let start = "graph \"g\" {%0 = scan {body = ".repeat(100_000);
    assert!(error(&start).ends_with("graphs stand in each other"));
}

#[test]
fn types_that_no_memory_holds_are_refused() {
    let half = 1usize << 31;
    let cases = [
        (
            format!("%0 = iota {{dtype = f32, shape = [{half}, {half}], axis = 0}}"),
            "is larger than any memory",
        ),
        (
            format!("%0 = iota {{dtype = u32, shape = [0, {half}, {half}, 4], axis = 0}}"),
            "is larger than any memory",
        ),
        (
            format!("{X}%1 = broadcast %0 {{shape = [{half}, {half}, 2], axes = [2]}}"),
            "is larger than any memory",
        ),
        (
            format!("%0 = iota {{dtype = u32, shape = {:?}, axis = 0}}", [1; 65]),
            "65 axes are more than the 64 of a tensor",
        ),
        (format!("{X}%1 = exp %0 : f32[{half},{half},2]"), "is larger than any memory"),
    ];
    for (statements, expected) in cases {
        let message = verified_error(&statements);
        assert!(message.starts_with("line ") && message.ends_with(expected), "{statements}: {message}");
    }
}

#[test]
fn ten_thousand_nodes_are_read_back_as_they_were() {
    let mut text = String::from("graph \"large\" {\n%0 = input {name = \"x\", dtype = f32, shape = [8]}\n");
    for i in 1..10_000 {
        text +=
            &format!("%{i} = add %{}, %{} : f32[8] in \"blocks.{i}\" at \"src/nn.rs\":{i}:9\n", i - 1, i / 2);
    }
    text += "output \"y\" = %9999\n}";
    let graph = Graph::parse(&text).unwrap();
    assert_eq!((graph.len(), graph.verify()), (10_000, Ok(())));
    assert_eq!(Graph::parse(&graph.to_string()), Ok(graph));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    /// Random edits of a valid file parse or fail; what parses can be verified and printed, and parses again.
    #[test]
    fn no_text_panics(edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, edit()), 1..8)) {
        let mut text: Vec<char> = TRAIN.chars().collect();
        for (place, removed, inserted) in edits {
            let start = place.index(text.len() + 1);
            let end = (start + removed).min(text.len());
            text.splice(start..end, inserted.chars());
        }
        let text: String = text.into_iter().collect();
        if let Ok(graph) = Graph::parse(&text) {
            let _ = graph.verify();
            prop_assert_eq!(Graph::parse(&graph.to_string()), Ok(graph));
        }
    }

    /// As above, with whole tokens changed, so that more texts parse and reach the type rules.
    #[test]
    fn no_tokens_panic(edits in prop::collection::vec((any::<prop::sample::Index>(), edit()), 1..4)) {
        let mut words: Vec<&str> = TRAIN.split_inclusive([' ', ',', '[', ']', '\n']).collect();
        for (place, word) in &edits {
            let place = place.index(words.len());
            words[place] = word;
        }
        if let Ok(graph) = Graph::parse(&words.concat()) {
            let _ = graph.verify();
            prop_assert_eq!(Graph::parse(&graph.to_string()), Ok(graph));
        }
    }
}

fn edit() -> impl Strategy<Value = String> {
    let tokens = [
        "",
        " ",
        "%0 ",
        "%7, ",
        "%8 ",
        "{",
        "}",
        "[",
        "]",
        ",",
        "0",
        "1]",
        "18446744073709551615, ",
        "9e15",
        "18446744073709551615]",
        "reshape ",
        "exp ",
        "dot_general ",
        "concat ",
        "scatter_add ",
        "slice ",
        "f32[",
        "bool[",
        "axis = 9000000000000000",
        "\"",
        "\\",
        "\\u{110000}",
        "#",
        "\n",
        "é",
        "NaN",
        "-inf",
        "in ",
        "at ",
        ":",
        "=",
    ];
    prop_oneof![
        prop::sample::select(tokens.to_vec()).prop_map(String::from),
        any::<char>().prop_map(String::from)
    ]
}
