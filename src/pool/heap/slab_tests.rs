//! Tests of [`super`].

use super::*;

#[test]
fn classes_cover_every_small_size_with_little_waste() {
    assert_eq!(class_size(CLASSES - 1), SMALL_MAX);
    for size in 1..=SMALL_MAX {
        let c = class_of(size);
        assert!(c < CLASSES && class_size(c) >= size, "{size} in class {c}");
        assert!(c == 0 || class_size(c - 1) < size, "{size} would fit a smaller class than {c}");
        if size > 2048 {
            assert!(class_size(c) - size < size / 8 + SMALL_MIN, "{size} wastes {}", class_size(c) - size);
        }
    }
    for c in 0..CLASSES {
        assert!(slab_size(c) / class_size(c) <= 256, "the bitmap holds class {c}");
        assert_eq!(slab_size(c) % SLOT, 0);
    }
}

#[test]
fn objects_are_found_by_any_address_in_them() {
    for class in 0..CLASSES {
        let mut slabs = Slabs::default();
        let i = slabs.add(class, (1 << 30, slab_size(class)), 0);
        let capacity = slabs.try_get(i).map_or(0, |s| s.capacity);
        let containing = |addr| slabs.try_get(i).and_then(|s| s.object_containing(addr));
        assert!(slab_size(class) < 1 << 20);
        for offset in (0..slab_size(class)).step_by(64).flat_map(|o| [o, o + 63]) {
            let n = (offset / class_size(class)) as u32;
            let found = containing((1 << 30) + offset);
            assert_eq!(found, (n < capacity).then_some(n), "class {class} offset {offset}");
        }
        assert_eq!(containing((1 << 30) - 1), None);
    }
}

#[test]
fn aligned_classes_start_objects_at_multiples() {
    for (size, align) in [(1, 256), (300, 512), (1000, 4096), (5000, 2048), (40000, 65536)] {
        let c = aligned_class(size, align).unwrap_or(CLASSES);
        assert!(c < CLASSES && class_size(c) >= size && class_size(c).is_multiple_of(align), "{size} at {align}");
    }
}

#[test]
fn objects_come_back_and_one_empty_slab_stays() {
    let mut s = Slabs::default();
    let class = class_of(1000);
    assert_eq!(s.alloc(class, 1000, 1), None);
    let a = s.add(class, (1 << 20, slab_size(class)), 0);
    let per = s.try_get(a).map_or(0, |s| s.capacity);
    let all: Vec<u64> = (0..per).filter_map(|i| s.alloc(class, 1000, u64::from(i))).map(|t| t.1).collect();
    assert_eq!(all.len() as u32, per);
    assert_eq!(s.alloc(class, 1000, 9), None, "full");
    let b = s.add(class, (2 << 20, slab_size(class)), 1);
    assert!(s.alloc(class, 1000, 10).is_some_and(|t| t.1 >= 2 << 20));
    assert_eq!(s.validate(), Ok(()));
    for n in 0..per - 1 {
        assert!(!s.free(a, n, || Tag::SETTLED), "still in use");
    }
    s.free_later(a, per - 1, || Tag::SETTLED);
    assert!(!s.settle(a, per - 1), "the first empty slab is the spare");
    assert!(s.free(b, 0, || Tag::SETTLED), "a second empty one is not needed");
    assert_eq!(s.remove(b), 1);
    assert_eq!(s.validate(), Ok(()));
}

/// The first slabs of a class are short, and together they are a spare.
#[test]
fn slabs_grow_with_their_number() {
    for class in 0..CLASSES {
        let mut s = Slabs::default();
        let sizes: Vec<u64> = (0..5)
            .map(|n| {
                let size = s.next_size(class);
                s.add(class, (n << 20, size), n as u32);
                size
            })
            .collect();
        assert_eq!(sizes[0], class_size(class).next_multiple_of(SLOT));
        assert!(sizes.is_sorted() && sizes[3..] == [slab_size(class); 2], "class {class}: {sizes:?}");
        assert_eq!(s.validate(), Ok(()));
    }
    let mut s = Slabs::default();
    let class = CLASSES - 1;
    let slabs: Vec<u32> = (0..4).map(|n| s.add(class, (n << 20, SLOT << n), n as u32)).collect();
    let all: Vec<(Place, u64)> = (0..15).filter_map(|i| s.alloc(class, 60_000, i)).collect();
    assert_eq!((all.len(), s.alloc(class, 60_000, 15)), (15, None));
    let surplus = |s: &mut Slabs, slab: u32| (0..1 << slab).any(|n| s.free(slab, n, || Tag::SETTLED));
    assert_eq!([0, 1, 2, 3].map(|i| surplus(&mut s, slabs[i])), [false, false, false, true]);
    assert_eq!(s.validate(), Ok(()));
}
