//! The measured values.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

/// The values that have been measured so far.
#[derive(Debug, Default)]
pub(crate) struct Results(Vec<Value>);

impl Results {
    /// Adds and prints a value with its limit.
    pub(crate) fn add(
        &mut self,
        name: impl Into<String>,
        value: f64,
        unit: &'static str,
        limit: Option<f64>,
    ) {
        let name = name.into();
        let bound = limit
            .map(|limit| format!(", limit {limit}"))
            .unwrap_or_default();
        println!("{name}: {value:.3} {unit}{bound}");
        self.0
            .push(json!({"name": name, "value": value, "unit": unit, "limit": limit}));
    }

    /// Writes the results, and returns whether a value exceeds its limit.
    pub(crate) fn finish(self) -> ExitCode {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/bench");
        fs::create_dir_all(&folder).unwrap();
        let text = serde_json::to_string_pretty(&self.0).unwrap();
        fs::write(folder.join("scale.json"), text + "\n").unwrap();
        let is_over = |one: &&Value| {
            let limit = one["limit"].as_f64();
            limit.is_some_and(|limit| one["value"].as_f64().is_none_or(|value| value > limit))
        };
        let over: Vec<&Value> = self.0.iter().filter(is_over).collect();
        for one in &over {
            println!("EXCEEDED: {one}");
        }
        if over.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

/// The resident memory of this process, in bytes.
pub(crate) fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line.unwrap().trim_end_matches("kB").trim().parse().unwrap();
    kib * 1024
}

/// Converts the number to a float. The number must be small enough for an exact conversion.
pub(crate) fn float(number: impl TryInto<u32>) -> f64 {
    number.try_into().map_or(f64::INFINITY, f64::from)
}
