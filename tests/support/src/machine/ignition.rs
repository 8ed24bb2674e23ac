//! Ignition in a machine, as in the initial RAM file system of Flatcar.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::MachineBuilder;
use crate::binaries::build;

/// The program, in the version whose formats Cluster API's bootstrap provider uses.
static IGNITION: LazyLock<PathBuf> = LazyLock::new(|| {
    build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../ignition/build")).join("ignition")
});

impl MachineBuilder {
    /// Before systemd starts, Ignition writes the files and the presets of this configuration. systemd applies the
    /// presets, because the boot is the first boot of the machine.
    ///
    /// If Ignition fails, the machine does not boot. [`Machine::journal`](super::Machine::journal) begins with the log
    /// of Ignition.
    ///
    /// # Panics
    ///
    /// Panics if Ignition cannot be built.
    #[track_caller]
    pub fn ignition(self, configuration: &str) -> Self {
        // Ignition reads this file before the data source of a platform.
        self.program("/usr/bin/ignition", &IGNITION).file(
            "/usr/lib/ignition/user.ign",
            0o600,
            configuration,
        )
    }
}
