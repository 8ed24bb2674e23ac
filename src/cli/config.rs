//! The command `config`.

use serde_json::{Value, json};

use super::arguments::{Arguments, ConfigAction};
use super::inspect::show;
use super::{Session, leftovers};
use crate::failure::Failure;
use crate::settings::{self, Effective, Sources};
use crate::sheet::Sheet;

impl Session {
    pub(super) fn config(
        &self,
        arguments: &Arguments,
        action: &ConfigAction,
    ) -> Result<(), Failure> {
        match action {
            ConfigAction::Check { file, output } => {
                let sources = Self::sources(arguments);
                let sources = Sources {
                    config: file.as_deref().or(sources.config),
                    ..sources
                };
                self.warn_of_leftovers(&leftovers());
                show(&self.effective(sources)?, *output)
            }
        }
    }

    /// Returns the effective settings, and the settings files that were read.
    pub(super) fn effective(&self, sources: Sources<'_>) -> Result<Sheet, Failure> {
        let files = settings::files(&sources)?;
        let files: Vec<_> = files
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let mut sheet = Sheet::default();
        sheet.list("files", "Files", &files);
        for setting in settings::effective(sources, &self.schema)? {
            add(&setting, &mut sheet);
        }
        Ok(sheet)
    }
}

fn add(setting: &Effective, sheet: &mut Sheet) {
    let (name, source) = (setting.entry.name, &setting.source);
    let words = match &setting.value {
        Some(Value::String(text)) => format!("{text} ({source})"),
        Some(value) => format!("{value} ({source})"),
        None if setting.entry.otherwise.is_empty() => "not set".to_owned(),
        None => format!("not set: {}", setting.entry.otherwise),
    };
    let value = json!({ "value": setting.value, "source": source });
    sheet.value(name, name, value, words);
}
