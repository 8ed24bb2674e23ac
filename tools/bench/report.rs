//! The results, as a table for readers and as JSON for programs.

use std::path::Path;

use serde_json::json;

/// One measured value.
#[derive(Debug)]
pub struct Value {
    /// The name of the measured quantity.
    pub name: String,
    /// The measured result.
    pub value: f64,
    /// The unit of the result.
    pub unit: &'static str,
    /// The maximum permitted result, if there is a limit.
    pub limit: Option<f64>,
}

/// The values of one suite.
#[derive(Debug)]
pub struct Suite {
    name: &'static str,
    values: Vec<Value>,
}

impl Suite {
    /// Creates a suite without values.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            values: Vec::new(),
        }
    }

    /// Adds a value, and its limit if there is one.
    pub fn add(
        &mut self,
        name: impl Into<String>,
        value: f64,
        unit: &'static str,
        limit: Option<f64>,
    ) {
        self.values.push(Value {
            name: name.into(),
            value,
            unit,
            limit,
        });
    }

    /// Writes `<folder>/<suite>.json`.
    pub fn write(&self, folder: &Path) {
        let values = self.values.iter().map(|value| {
            json!({"name": value.name, "value": value.value, "unit": value.unit, "limit": value.limit})
        });
        let values = values.collect::<Vec<_>>();
        std::fs::create_dir_all(folder).unwrap();
        let text = serde_json::to_string_pretty(&values).unwrap();
        std::fs::write(folder.join(format!("{}.json", self.name)), text + "\n").unwrap();
    }

    /// Prints the exceeded limits, and returns their number.
    pub fn print_exceeded(&self) -> usize {
        let over = |value: &&Value| value.limit.is_some_and(|limit| value.value > limit);
        let exceeded: Vec<_> = self.values.iter().filter(over).collect();
        for value in &exceeded {
            let limit = value.limit.unwrap_or_default();
            println!(
                "EXCEEDED {}: {} = {} {}, limit {limit}",
                self.name, value.name, value.value, value.unit
            );
        }
        let limited = self
            .values
            .iter()
            .filter(|value| value.limit.is_some())
            .count();
        if limited > 0 {
            println!(
                "{}: {} of {limited} limits hold",
                self.name,
                limited - exceeded.len()
            );
        }
        exceeded.len()
    }
}

/// Prints rows below a header as a Markdown table. The first column is left-aligned, and the other columns are
/// right-aligned.
pub fn print_table(header: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].len());
        cells
            .chain([header[column].len()])
            .max()
            .unwrap_or_default()
    };
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().enumerate().map(|(column, cell)| {
            let width = width(column);
            if column == 0 {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        println!("| {} |", cells.collect::<Vec<_>>().join(" | "));
    };
    line(header.to_vec());
    let rules: Vec<String> = (0..header.len())
        .map(|column| {
            if column == 0 {
                "---".to_owned()
            } else {
                "--:".to_owned()
            }
        })
        .collect();
    line(rules.iter().map(String::as_str).collect());
    for row in rows {
        line(row.iter().map(String::as_str).collect());
    }
}
