//! Runs cloud-init in a machine: Debian's package, its units and its generator.

use serde_json::{Map, Value};

use super::MachineBuilder;
use crate::cloud_init::tree;

/// The units that the package enables.
const ENABLED: [&str; 4] = [
    "cloud-config.service",
    "cloud-final.service",
    "cloud-init-local.service",
    "cloud-init.service",
];

/// The modules that Cluster API's bootstrap data needs. Debian's selection would also create users, grow partitions
/// and install packages. The network already exists.
const CONFIGURATION: &str = "\
datasource_list: [NoCloud]
datasource: {NoCloud: {fs_label: null}}
network: {config: disabled}
users: []
disable_root: false
preserve_hostname: false
cloud_init_modules: [bootcmd, write-files, set_hostname]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts-user, final-message]
system_info: {distro: debian, paths: {cloud_dir: /var/lib/cloud/, templates_dir: /etc/cloud/templates/}}
";

/// The directory of the datasource `NoCloud`.
const SEED: &str = "/var/lib/cloud/seed/nocloud";

impl MachineBuilder {
    /// Makes cloud-init run this user data at boot, after all other programs have started.
    ///
    /// The instance's metadata contains its name (`local-hostname` and `instance-id`) and the entries of the argument
    /// `metadata`, which can override the name.
    ///
    /// # Panics
    ///
    /// Panics if cloud-init is neither installed nor available for download.
    #[track_caller]
    pub fn cloud_init(self, user_data: &str, metadata: &[(&str, &str)]) -> Self {
        let mut all = Map::new();
        for (key, value) in [
            ("instance-id", self.name()),
            ("local-hostname", self.name()),
        ]
        .iter()
        .chain(metadata)
        {
            all.insert((*key).to_owned(), Value::from(*value));
        }
        // JSON is valid YAML.
        let metadata = Value::from(all).to_string();
        let builder = self
            .tree(&tree())
            .file("/etc/cloud/cloud.cfg", 0o644, CONFIGURATION)
            .file(&format!("{SEED}/meta-data"), 0o644, metadata)
            .file(&format!("{SEED}/user-data"), 0o600, user_data);
        ENABLED.iter().fold(builder, |builder, unit| {
            let wants = format!("/etc/systemd/system/cloud-init.target.wants/{unit}");
            builder.link(&wants, &format!("/usr/lib/systemd/system/{unit}"))
        })
    }
}
