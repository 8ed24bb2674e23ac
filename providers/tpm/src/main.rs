//! `kubelet-authenticator-tpm`: for machines with a TPM 2.0.

fn main() {}
