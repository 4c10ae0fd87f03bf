package app

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// brokenNamed is how many broken rows /metrics names at most; a table that lost a column to NULL breaks all its rows at once.
const brokenNamed = 20

// brokenRows names the configuration rows that cannot be used now, so that whoever is called by an alert knows what to mend. Only
// those who write into the database can make one, and it is gone when it is mended: the one exception to labels that are fixed.
type brokenRows struct {
	rows  func() []tenants.BrokenRow
	named *prometheus.Desc
	count *prometheus.Desc
}

func newBrokenRows(rows func() []tenants.BrokenRow) *brokenRows {
	return &brokenRows{
		rows: rows,
		named: prometheus.NewDesc("pegel_config_broken_row", "1 for a configuration row that cannot be used now, the first 20 of them.",
			[]string{"table", "row"}, nil),
		count: prometheus.NewDesc("pegel_config_broken_rows", "Configuration rows that cannot be used now: safe defaults stand in for them.", nil, nil),
	}
}

// Describe is prometheus.Collector's.
func (b *brokenRows) Describe(descs chan<- *prometheus.Desc) { descs <- b.named; descs <- b.count }

// Collect is prometheus.Collector's.
func (b *brokenRows) Collect(metrics chan<- prometheus.Metric) {
	rows := b.rows()
	metrics <- prometheus.MustNewConstMetric(b.count, prometheus.GaugeValue, float64(len(rows)))
	type name struct{ table, id string }
	named := make(map[name]bool, min(len(rows), brokenNamed))
	for _, row := range rows {
		at := name{row.Table, strings.ToValidUTF8(row.ID, "?")} // a database need not be UTF-8
		if named[at] {
			continue
		}
		if len(named) == brokenNamed {
			return
		}
		named[at] = true
		metrics <- prometheus.MustNewConstMetric(b.named, prometheus.GaugeValue, 1, at.table, at.id)
	}
}
