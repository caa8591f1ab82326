//! The viewer's page in a real browser: headless Chromium, driven by real clicks and keys over its WebDriver.
//!
//! Where there is no Chromium (`CHROMIUM`, or one on the path) with its driver, these tests say so and do nothing.

mod browser;

use browser::Browser;
use kernfusion::models::preset;
use kernfusion::optim::Optimizer;
use kernfusion::viewer::{Code, Options, View};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The page of a preset's whole training step in a directory of its own, in a browser.
fn opened(name: &str, code: Code) -> Option<(Browser, View, String)> {
    let Some(browser) = Browser::start() else {
        println!("skipped: no Chromium with chromedriver (set CHROMIUM and CHROMEDRIVER)");
        return None;
    };
    let shape = preset(name).unwrap();
    let step = shape.config.train_step(shape.batch, &Optimizer::adamw(3e-4), None).unwrap();
    let options = Options { title: format!("{name} train"), code, ..Options::default() };
    let view = View::new(&step.program.graph, &options).unwrap();
    let address = browser.serve("page.html", &view.page());
    browser.open(&address);
    Some((browser, view, address))
}

impl Browser {
    /// Waits until something is chosen whose heading contains a text.
    fn await_chosen(&self, part: &str) -> String {
        let start = Instant::now();
        loop {
            let heading =
                self.eval("return (document.getElementById('chosen') || {}).textContent || ''", json!([]));
            let heading = heading.as_str().unwrap().to_string();
            if heading.contains(part) && !heading.is_empty() {
                return heading;
            }
            assert!(start.elapsed() < Duration::from_secs(5), "chosen is {heading:?}, not {part:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn text(&self, selector: &str) -> String {
        let text = self.eval("return document.querySelector(arguments[0]).textContent", json!([selector]));
        text.as_str().unwrap().to_string()
    }

    /// Types into the search and takes the first hit.
    fn search(&self, words: &str) {
        self.click("#search");
        self.eval("document.getElementById('search').value = ''", json!([]));
        self.keys("#search", words);
        self.click("#found li");
    }

    fn assert_no_errors(&self) {
        let errors = self.errors();
        assert!(errors.is_empty(), "{errors:?}");
    }
}

/// From an op to its line, its kernel, its code and its memory, by clicks alone.
#[test]
fn a_journey_by_clicks() {
    let Some((browser, view, address)) = opened("tiny", Code::All) else { return };
    assert_eq!(browser.text("#title"), "tiny train");
    browser.search("erf blocks.2.mlp");
    let chosen = browser.await_chosen("erf");
    // In the columns, everything that belongs to it is marked.
    assert!(browser.text(".column[data-kind=traced] .row.chosen").contains("erf"));
    assert!(browser.text(".column[data-kind=node] .row.linked").contains("erf"));
    assert!(browser.text(".column[data-kind=kernel] .row.linked").contains("blocks.2.mlp"));
    assert!(browser.text("[data-part='Your line']").contains("block.forward"));
    assert!(browser.text("[data-part=Gradients]").contains("mul"));
    // Its kernel, with the text of its region, and its code.
    browser.click("[data-part=Kernels] a");
    let kernel = browser.await_chosen("blocks.2.mlp");
    assert!(view.kernels.iter().any(|row| row.name == kernel), "{kernel}");
    assert!(browser.text("[data-part=Code] pre").contains(" = erf %"));
    browser.click("[data-part=Code] details:nth-of-type(2) summary");
    assert!(
        browser.text("[data-part=Code] details:nth-of-type(2) pre").contains("__global__")
            || browser.text("[data-part=Code] details:nth-of-type(2) pre").contains("KERNEL")
    );
    // A fused op by its row in a column, and back twice by the browser's own history.
    browser.click(".column[data-kind=node] .row.linked");
    browser.await_chosen("%");
    browser.back();
    browser.await_chosen(&kernel);
    browser.back();
    browser.await_chosen(&chosen);
    // A link from outside.
    browser.open(&format!("{address}#kernel=3"));
    browser.await_chosen(&view.kernels[3].name);
    browser.assert_no_errors();
}

#[test]
fn modules_views_and_keys() {
    let Some((browser, view, _)) = opened("tiny", Code::Nothing) else { return };
    let rows = |kind: &str| {
        let count = browser.text(&format!(".column[data-kind={kind}] .count"));
        count.replace(',', "").parse::<usize>().unwrap()
    };
    assert_eq!(rows("kernel"), view.kernels.len());
    assert_eq!(rows("node"), view.simplified.op.len());
    // A module alone, opened to its parts, and everything again.
    browser.click("#tree [data-path='blocks.1'] .op");
    let alone = view.kernels.iter().filter(|kernel| kernel.name.starts_with("blocks.1")).count();
    assert!(rows("kernel") >= alone && rows("kernel") < view.kernels.len(), "{}", rows("kernel"));
    browser.click("#tree [data-path='blocks.1'] .fold");
    browser.click("#tree [data-path='blocks.1.attn'] .op");
    assert!(rows("kernel") < alone);
    browser.click("#whole");
    assert_eq!(rows("kernel"), view.kernels.len());
    // The picture: opening a module shows its parts.
    let boxes =
        || browser.eval("return document.querySelectorAll('.modules g').length", json!([])).as_u64().unwrap();
    browser.keys("body", "2");
    let before = boxes();
    browser.click(".modules [data-path='blocks.0']");
    assert!(boxes() > before, "{before}");
    // Memory: a click in the middle of a buffer's rectangle chooses it.
    browser.click("#tabs [data-tab=memory]");
    let largest = (0..view.buffers.len())
        .filter(|&b| view.buffers[b].offset.is_some() && view.buffers[b].alias.is_none());
    let largest = largest.max_by_key(|&b| {
        let (first, last) = view.buffers[b].life.unwrap();
        view.buffers[b].bytes * (last - first + 1)
    });
    let largest = largest.unwrap();
    let place = browser.eval(
        "const rect = memory.rects.find(({ id }) => id === arguments[0]);
         const [x, y, w, h] = memory.place(rect);
         const { width, height } = memory.canvas.getBoundingClientRect();
         return [x + w / 2 - width / 2, y + h / 2 - height / 2]",
        json!([largest]),
    );
    browser.click_at(".memory canvas", &place);
    browser.await_chosen(&view.buffers[largest].name);
    let painted = "const { canvas } = memory; const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        const colours = new Set(); for (let at = 0; at < data.length; at += 4096) colours.add(data[at] << 16 | data[at + 1] << 8 | data[at + 2]);
        return colours.size";
    assert!(browser.eval(painted, json!([])).as_u64().unwrap() > 3);
    // The passes lead to nodes that their rules found.
    browser.click("#tabs [data-tab=passes]");
    browser.click(".pass a");
    browser.await_chosen("%");
    assert!(browser.text("#detail").contains('◆'));
    // By keys alone: a search, and nothing chosen any more.
    browser.keys("body", "/");
    browser.keys("#search", "loss\u{e015}\u{e007}");
    browser.await_chosen("");
    browser.keys("body", "\u{e00c}");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(browser.eval("return state.kind", json!([])), Value::Null);
    // Light and dark.
    let ground = || browser.eval("return getComputedStyle(document.body).backgroundColor", json!([]));
    let light = ground();
    browser.click("#theme");
    assert_ne!(ground(), light);
    browser.assert_no_errors();
}

/// A whole training step of GPT-2 small opens in less than three seconds and stays quick.
#[test]
fn gpt2_small_opens_at_once() {
    let Some((browser, view, address)) = opened("gpt2-small", Code::All) else { return };
    let mut times = Vec::new();
    for _ in 0..3 {
        browser.open("about:blank");
        browser.open(&address);
        let times_of = "const { timing } = performance;
            return [timing.loadEventEnd - timing.navigationStart, Number(document.documentElement.dataset.ready)]";
        times.push(browser.eval(times_of, json!([])));
    }
    let chosen = browser.eval(
        "const start = performance.now(); location.hash = 'kernel=100'; follow();
         const selecting = performance.now() - start; showTab('memory');
         return [selecting, performance.now() - start - selecting]",
        json!([]),
    );
    let (nodes, size) = (view.traced.op.len(), view.page().len());
    println!("{nodes} nodes, {size} bytes: [load, ready] in ms {times:?}; [choosing, memory] in ms {chosen}");
    assert!(nodes > 7000 && size < 4 << 20, "{nodes} nodes, {size} bytes");
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let load = median(times.iter().map(|both| both[0].as_f64().unwrap()).collect());
    assert!(load > 0.0 && load < 3000.0, "{load} ms");
    // What exists of the lists is what is on the screen.
    let rows = browser.eval("showTab('stages'); return document.querySelectorAll('.row').length", json!([]));
    assert!(rows.as_u64().is_some_and(|rows| rows > 50 && rows < 1000), "{rows}");
    browser.assert_no_errors();
}
