-- A tenant's zone, and the windows of a former zone that are still in force: a change of the zone in mid-day must not
-- reset anything twice, and that must outlive the process that saw the change.
ALTER TABLE tenants ADD COLUMN calendar TEXT;       -- JSON; NULL: the zone of the catalog, never changed
