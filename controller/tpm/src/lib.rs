//! Verifies which TPM, and so which machine, asks for a kubelet certificate.
