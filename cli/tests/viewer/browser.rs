//! Headless Chromium over the W3C WebDriver protocol: JSON over loopback HTTP to `chromedriver`.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A browser with one window; it ends when this is dropped.
pub(crate) struct Browser {
    driver: Child,
    session: String,
    directory: TempDir,
}

/// The first of these programs that is there: what the variable names, or one on the path.
fn program(variable: &str, names: &[&str]) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Some(path.into());
    }
    let paths = std::env::var_os("PATH")?;
    let mut candidates =
        std::env::split_paths(&paths).flat_map(|path| names.iter().map(move |name| path.join(name)));
    candidates.find(|path| path.is_file())
}

impl Browser {
    /// Starts one, where there is one.
    pub(crate) fn start() -> Option<Browser> {
        let chromium = program("CHROMIUM", &["chromium", "chromium-browser", "google-chrome"])?;
        let driver = program("CHROMEDRIVER", &["chromedriver"])?;
        // Port 0: the driver takes a free one and says which.
        let mut driver = Command::new(driver)
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = loop {
            let line = lines.next().expect("the driver says its port").unwrap();
            if let Some(port) = line.split("successfully on port ").nth(1) {
                break port.trim_end_matches('.').parse::<u16>().unwrap();
            }
        };
        std::thread::spawn(move || lines.for_each(drop));
        let flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1600,1000"];
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"binary": chromium, "args": flags},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let root = format!("http://127.0.0.1:{port}/session");
        let started = post(&root, &capabilities);
        let session = format!("{root}/{}", started["sessionId"].as_str().expect("a session"));
        Some(Browser { driver, session, directory: tempfile::tempdir().unwrap() })
    }

    /// Writes a page to a file; its address.
    pub(crate) fn serve(&self, name: &str, page: &str) -> String {
        let path = self.directory.path().join(name);
        std::fs::write(&path, page).unwrap();
        format!("file://{}", path.display())
    }

    /// Goes to an address and waits until it has loaded.
    pub(crate) fn open(&self, address: &str) {
        self.command("url", &json!({"url": address}));
    }

    pub(crate) fn back(&self) {
        self.command("back", &json!({}));
    }

    /// Runs a script with arguments; what it returns.
    pub(crate) fn eval(&self, script: &str, arguments: Value) -> Value {
        self.command("execute/sync", &json!({"script": script, "args": arguments}))
    }

    /// Clicks on the first element as a user does: it must be in sight and uncovered.
    pub(crate) fn click(&self, selector: &str) {
        let element = self.element(selector);
        self.command(&format!("element/{element}/click"), &json!({}));
    }

    /// Clicks at `[x, y]` from the middle of an element.
    pub(crate) fn click_at(&self, selector: &str, place: &Value) {
        let origin = json!({"element-6066-11e4-a52e-4f735466cecf": self.element(selector)});
        let at = |axis: usize| place[axis].as_f64().unwrap().round() as i64;
        let actions = json!([
            {"type": "pointerMove", "x": at(0), "y": at(1), "origin": origin},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]);
        self.command(
            "actions",
            &json!({"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]}),
        );
    }

    /// Types into an element.
    pub(crate) fn keys(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        self.command(&format!("element/{element}/value"), &json!({"text": text}));
    }

    /// What the page reported as errors.
    pub(crate) fn errors(&self) -> Vec<String> {
        let log = self.command("se/log", &json!({"type": "browser"}));
        let severe = log.as_array().unwrap().iter().filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].to_string()).collect()
    }

    fn element(&self, selector: &str) -> String {
        let found = self.command("element", &json!({"using": "css selector", "value": selector}));
        let id = found.as_object().and_then(|found| found.values().next()).and_then(Value::as_str);
        id.unwrap_or_else(|| panic!("no {selector}: {found}")).to_string()
    }

    fn command(&self, name: &str, body: &Value) -> Value {
        post(&format!("{}/{name}", self.session), body)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends the browser with the session.
        let _ = ureq::delete(&self.session).call();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// The value of the answer.
fn post(address: &str, body: &Value) -> Value {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let request = agent.post(address).header("content-type", "application/json");
    let mut answer = request.send(body.to_string()).unwrap_or_else(|error| panic!("{address}: {error}"));
    let text = answer.body_mut().with_config().limit(64 << 20).read_to_string().unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(
        answer["value"]["error"].is_null(),
        "{address}: {} {}",
        answer["value"]["error"],
        answer["value"]["message"]
    );
    answer["value"].clone()
}
