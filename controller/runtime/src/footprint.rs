//! Sizes of futures that exist for each cluster, for tests.
//!
//! A future reserves space for all of its states, and most clusters are idle. With 1,000 clusters, each kilobyte costs
//! 1 MB. The memory benchmark does not run with the tests, so these limits detect an increase early.

/// The size of the future or stream that this function returns. The function is not called.
pub(crate) fn size<F>(_: impl FnOnce() -> F) -> usize {
    size_of::<F>()
}

/// An argument for a function that is not called.
pub(crate) fn any<T>() -> T {
    panic!("the function is not called")
}

/// Asserts that sizes in bytes do not exceed their limits.
#[track_caller]
pub(crate) fn assert_limits(sizes: &[(&str, usize, usize)]) {
    let over = sizes.iter().filter(|(_, size, limit)| size > limit);
    let over: Vec<_> = over.collect();
    assert!(over.is_empty(), "(name, size, limit): {over:?}");
}
