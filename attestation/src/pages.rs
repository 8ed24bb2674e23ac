//! The URLs of the documentation, for texts that programs print.
//!
//! Packages do not install the documentation, and nodes do not have the source. Therefore, texts contain the URL of a
//! page for the program's release.

/// The URL of a page in `docs` of this release. The argument is the file name, and optionally an anchor.
///
/// This is a macro, because `concat!` accepts only literals. All packages of the workspace have the same repository and
/// version.
///
/// ```
/// let url = kubelet_attestation::page_url!("reasons.md#denied");
///
/// assert!(url.starts_with("https://"), "{url}");
/// assert!(url.ends_with("/docs/reasons.md#denied"), "{url}");
/// ```
#[macro_export]
macro_rules! page_url {
    ($page:literal) => {
        concat!(
            env!("CARGO_PKG_REPOSITORY"),
            "/blob/v",
            env!("CARGO_PKG_VERSION"),
            "/docs/",
            $page
        )
    };
}
