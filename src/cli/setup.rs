//! The command `setup`.

use std::path::{Path, PathBuf};

use super::arguments::Arguments;
use super::{Session, answer};
use crate::authenticator::Caller;
use crate::failure::{Code, Failure};
use crate::leftovers::Leftovers;
use crate::ownership;
use crate::process;
use crate::setup::{Setup, is_plain};

impl Session {
    pub(super) fn set_up(&self, arguments: &Arguments, options: &Setup) -> Result<(), Failure> {
        plain("--kubelet-kubeconfig", &options.kubelet_kubeconfig)?;
        plain("--cert-dir", &options.cert_dir)?;
        let setup = Setup {
            program: this_program()?,
            provider: self.attester.provider().to_string(),
            ..options.clone()
        };
        if let Some(untrusted) = ownership::of_path(&setup.program) {
            let what = format!(
                "another user can change the program that the kubelet runs as root: {}",
                untrusted.what
            );
            self.log.warn_with_remedy(&what, &untrusted.remedy);
        }
        let leftovers = Leftovers::default();
        let kubeconfig = &options.kubelet_kubeconfig;
        self.warn_of_leftovers(&leftovers.in_kubeconfig(kubeconfig));
        // `--replace` is used by an operator, who might have just fixed the cause of a failure.
        let caller = if options.replace {
            Caller::Person
        } else {
            Caller::Setup
        };
        let authenticator = self
            .authenticator(Self::sources(arguments), caller)
            .inspect_err(|_| setup.give_up())?;
        let text = if setup.undo {
            setup.undo(&authenticator)?
        } else {
            setup.take_over(authenticator)?
        };
        answer::print(&text)
    }
}

/// Rejects a path that systemd does not interpret literally.
pub(super) fn plain(flag: &str, path: &Path) -> Result<(), Failure> {
    if is_plain(path) {
        return Ok(());
    }
    let path = path.to_string_lossy();
    let what =
        format!("{flag} {path:?} is not an absolute path without systemd special characters");
    let remedy = "use an absolute path without spaces, quotes or the characters \\ % $ ; #";
    Err(Failure::new(Code::Usage, what, remedy))
}

/// Returns the path of this program.
fn this_program() -> Result<PathBuf, Failure> {
    process::path().map_err(|error| {
        let what = format!("cannot determine the path of this program: {error}");
        Failure::new(
            Code::Internal,
            what,
            "run this program with its absolute path",
        )
    })
}
