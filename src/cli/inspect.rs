//! The command `inspect`.

use super::arguments::{Arguments, Inspected, OutputFormat};
use super::{Session, answer};
use crate::clock;
use crate::failure::{Code, Failure};
use crate::inspect::{Document, evidence, requests, store};
use crate::reasons;
use crate::settings::Settings;
use crate::sheet::Sheet;

impl Session {
    pub(super) fn inspect(&self, arguments: &Arguments, object: &Inspected) -> Result<(), Failure> {
        let now = clock::now();
        match object {
            Inspected::Evidence(input) => {
                let document = Document::read(input.file.as_deref())?;
                show(&evidence(&document)?, input.output)
            }
            Inspected::Request(input) => {
                let document = Document::read(input.file.as_deref())?;
                let sheets = requests(&document, now)?;
                match sheets.as_slice() {
                    [sheet] => show(sheet, input.output),
                    sheets => show_all(sheets, input.output),
                }
            }
            Inspected::Store { directory, output } => {
                let directory = match directory {
                    Some(directory) => directory.clone(),
                    None => Settings::load(Self::sources(arguments), &self.schema)?.state_directory,
                };
                show(&store(&directory, &self.machine, now)?, *output)
            }
        }
    }
}

/// Prints the meaning and the remedy of a reason that the controller reported.
pub(super) fn explain_reason(name: &str, output: OutputFormat) -> Result<(), Failure> {
    let sheet = reasons::explain(name).ok_or_else(|| {
        let what = format!("unknown reason {name:?}");
        let remedy = format!(
            "check the spelling, with upper and lower case; for all reasons, see {}",
            reasons::PAGE
        );
        Failure::new(Code::Usage, what, remedy)
    })?;
    show(&sheet, output)
}

/// Prints a sheet.
pub(super) fn show(sheet: &Sheet, output: OutputFormat) -> Result<(), Failure> {
    let text = match output {
        OutputFormat::Table => sheet.to_table(),
        OutputFormat::Json => answer::json(&sheet.to_json()),
        OutputFormat::Yaml => answer::yaml(&sheet.to_json()),
    };
    answer::print(&text)
}

/// Prints several sheets, with an empty line between two tables.
fn show_all(sheets: &[Sheet], output: OutputFormat) -> Result<(), Failure> {
    let json = || sheets.iter().map(Sheet::to_json).collect();
    let text = match output {
        OutputFormat::Table => {
            let tables: Vec<_> = sheets.iter().map(Sheet::to_table).collect();
            tables.join("\n")
        }
        OutputFormat::Json => answer::json(&json()),
        OutputFormat::Yaml => answer::yaml(&json()),
    };
    answer::print(&text)
}
