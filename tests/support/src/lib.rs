//! Simulators and fixtures that are independent of the code under test.

mod hex;
mod serving;
mod tlv;

pub mod api_server;
pub mod binaries;
pub mod clock;
pub mod cloud_init;
pub mod connect_proxy;
pub mod control_plane;
pub mod ek_ca;
pub mod event_log;
pub mod imds;
pub mod instance_identity;
pub mod kubelet;
pub mod machine;
pub mod moto;
pub mod pki;
pub mod process;
pub mod settings;
pub mod sts;
pub mod swtpm;
pub mod tpm_machine;
pub mod tpm_proxy;
pub mod virtual_machine;
