//! The command `metrics`.

use std::path::Path;

use super::arguments::Arguments;
use super::{Session, answer};
use crate::attester::Renewal;
use crate::clock;
use crate::failure::Failure;
use crate::metrics::{self, NodeState};
use crate::settings::Settings;

impl Session {
    pub(super) fn metrics(
        &self,
        arguments: &Arguments,
        textfile: Option<&Path>,
    ) -> Result<(), Failure> {
        let settings = Settings::load(Self::sources(arguments), &self.schema)?;
        let is_renewed = self.attester.renewal() == Renewal::Attested;
        let directory = &settings.state_directory;
        let state = NodeState::read(directory, &self.machine, is_renewed, clock::now())?;
        let text = state.to_text(self.attester.provider().as_str());
        match textfile {
            Some(path) => metrics::write(path, &text),
            None => answer::print(&text),
        }
    }
}
