//! Requests on which the controller does not decide.

crate::reasons! {
    /// The reasons why the controller does not answer a request.
    #[derive(Clone, PartialEq, Eq)]
    pub Ignored {
        /// The request is for another signer, or for the signer of an attestation provider that this cluster does not
        /// authorize.
        #[error("the signer {0:?} does not belong to this controller")]
        #[cure("If the plugin sent the request, add the provider to `authorizedAttestors`. Otherwise, no action is \
                 needed.")]
        AnotherSigner(String) => "another signer answers this request",
        /// Attestation is not enforced in this cluster yet (`autoApproveBindings`), and the request is for a built-in
        /// signer. The signer's own approver, or an operator, answers the request.
        #[error("attestation is not enforced in this cluster, and the request is for a built-in signer")]
        #[cure("No action is needed. To enforce attestation, set `autoApproveBindings: Remove`.")]
        NotEnforced => "attestation is not enforced in this cluster",
        /// The request is already denied.
        #[error("the request was already denied")]
        #[cure("No action is needed. The condition `Denied` contains the reason.")]
        AlreadyDenied => "the request was already denied",
        /// The request has already failed.
        #[error("the request already failed")]
        #[cure("No action is needed. The condition `Failed` contains the reason.")]
        AlreadyFailed => "the request already failed",
        /// The controller already approved the request, and kube-controller-manager signs it.
        #[error("the request was already approved, and its signer does not belong to this controller")]
        #[cure("If no certificate follows, check that kube-controller-manager runs with \
                 `--cluster-signing-cert-file`.")]
        AlreadyApproved => "the request was already approved",
        /// The built-in client signer issued the certificate before the controller could deny the request: another
        /// approver accepts requests without evidence.
        #[error("the built-in client signer issued a certificate that this controller did not approve")]
        #[cure("Close the auto-approval path that `cluster check` reports. The certificate remains valid until it \
                 expires.")]
        IssuedByOthers => "another signer issued a certificate for this request without attestation",
        /// The request already has a certificate.
        #[error("the certificate was already issued")]
        #[cure("No action is needed.")]
        AlreadyIssued => "the certificate was already issued",
    }
}
