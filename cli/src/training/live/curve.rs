//! A curve that grows without end in a place that does not.

/// The most points of a curve; a terminal shows fewer.
const MOST: usize = 1024;

/// Points, each the mean of as many values as all of them together need.
#[derive(Debug, Clone, Default)]
pub(crate) struct Curve {
    points: Vec<(f64, f64)>,
    /// Values in a point, as a power of two.
    doublings: u32,
    /// The values of the point that is not complete yet: their number and the sums of x and y.
    open: (u32, f64, f64),
}

impl Curve {
    /// Adds a value; one that is not finite has no place on a curve.
    pub(crate) fn push(&mut self, x: f64, y: f64) {
        if !y.is_finite() {
            return;
        }
        let (count, sum_x, sum_y) = (self.open.0 + 1, self.open.1 + x, self.open.2 + y);
        self.open = (count, sum_x, sum_y);
        if count == 1 << self.doublings {
            self.points.push((sum_x / f64::from(count), sum_y / f64::from(count)));
            self.open = Default::default();
        }
        if self.points.len() == MOST {
            let pairs = self
                .points
                .chunks(2)
                .map(|pair| ((pair[0].0 + pair[1].0) / 2.0, (pair[0].1 + pair[1].1) / 2.0));
            self.points = pairs.collect();
            self.doublings += 1;
        }
    }

    /// All points by ascending x, those of a curve with `width` columns: not more than two for each.
    pub(crate) fn points(&self, width: u16) -> Vec<(f64, f64)> {
        let piece = self.points.len().div_ceil(2 * usize::from(width.max(1))).max(1);
        let mean = |points: &[(f64, f64)]| {
            let count = points.len() as f64;
            (
                points.iter().map(|it| it.0).sum::<f64>() / count,
                points.iter().map(|it| it.1).sum::<f64>() / count,
            )
        };
        self.points.chunks(piece).map(mean).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_keeps_its_form() {
        let mut curve = Curve::default();
        for x in 0..10_000 {
            curve.push(f64::from(x), f64::from(2 * x));
            curve.push(f64::from(x), f64::NAN);
        }
        assert!(curve.points.len() < MOST && curve.points.len() > MOST / 4, "{}", curve.points.len());
        assert!(curve.points.iter().all(|&(x, y)| (y - 2.0 * x).abs() < 1e-9));
        assert!(curve.points[0].0 < 16.0 && curve.points.last().unwrap().0 > 9900.0);
        assert!(curve.points(20).len() <= 40);
    }
}
